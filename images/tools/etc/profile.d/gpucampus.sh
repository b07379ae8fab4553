# shellcheck shell=sh
# For terminals: a person's own packages, behind those of the image (docs/howto/packages.md). Read by every zsh, and by
# bash as a login shell, whose /etc/profile has just forgotten the image's PATH.
if [ -n "${GPUCAMPUS_VARIANT:-}" ] && [ -n "${HOME:-}" ]; then
    export GPUCAMPUS_PACKAGES="$HOME/.local/share/gpucampus/$GPUCAMPUS_VARIANT"
    case ":$PATH:" in
        *:/opt/venv/bin:*) ;;
        *) PATH="/opt/venv/bin:$PATH" ;;
    esac
    case ":$PATH:" in
        *":$GPUCAMPUS_PACKAGES/bin:"*) ;;
        *) PATH="$PATH:$GPUCAMPUS_PACKAGES/bin" ;;
    esac
    export PATH
fi
