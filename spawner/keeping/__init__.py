"""Keeping a hub: its state in one file, put back from it, and brought to a newer version.

What must hold:

- A backup is whole or is not there, holds secrets for its owner only, and never replaces a file.
- A restore changes nothing before every byte of the backup has been verified, and throws nothing away.
- A command that dies at any line leaves the old state, or the new one, or a note that makes the hub refuse to start
  until the next run of the command has finished its work.
- Databases are migrated by `gpucampus upgrade` alone, after a backup; what fails is put back.
- Homes are not part of any of it, and SQLite is the only database that is known here.
"""
