/* Where the inventory and the device nodes are. A file of its own, since dladdr() wants _GNU_SOURCE, which elsewhere
 * would bind number parsing to symbols of a glibc newer than the one in the containers. */
#define _GNU_SOURCE
#include "inventory.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void locate(const char *variable, const char *beside, const char *fallback, char *path, size_t size)
{
    const char *named = getenv(variable);
    Dl_info self;

    if (named != NULL && *named != '\0') {
        snprintf(path, size, "%s", named);
        return;
    }
    if (dladdr((void *)(size_t)&locate, &self) != 0 && self.dli_fname != NULL) {
        const char *slash = strrchr(self.dli_fname, '/');
        int folder = slash == NULL ? 0 : (int)(slash - self.dli_fname) + 1;

        snprintf(path, size, "%.*s%s", folder, self.dli_fname, beside);
        if (access(path, R_OK) == 0)
            return;
    }
    snprintf(path, size, "%s", fallback);
}
