/* What the exported functions share: status codes, the lock, the check of a handle. */
#ifndef GPUCAMPUS_API_H
#define GPUCAMPUS_API_H

#include "inventory.h"

typedef struct device *handle;

enum status {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15,
    VERSION_MISMATCH = 25
};

#define EXPORT __attribute__((visibility("default")))
#define API EXPORT enum status

extern unsigned nvml_users; /* nvmlInit less nvmlShutdown */

/* The n-th reachable device below a parent (NULL: the n-th GPU), or NULL. */
struct device *nth(const struct inventory *inventory, const struct device *parent, unsigned n);

/* Whether the device, or the GPU it is a part of, does not answer any more. */
bool is_lost(const struct device *device);

void leave(const int *unused);

/* Holds the lock until the function returns, by whichever way. */
#define HOLD()                                                                                                          \
    inventory_lock();                                                                                                   \
    __attribute__((cleanup(leave), unused)) const int held = 0

#define ENTER()                                                                                                         \
    HOLD();                                                                                                             \
    const struct inventory *inventory = inventory_now();                                                                \
    if (nvml_users == 0)                                                                                                \
        return UNINITIALIZED;                                                                                           \
    (void)inventory

#define REQUIRE(condition, otherwise)                                                                                   \
    if (!(condition))                                                                                                   \
    return otherwise

/* Also checks the handle: a GPU that has left the file is as good as lost, and so are its MIG instances. */
#define ENTER_DEVICE(device)                                                                                            \
    ENTER();                                                                                                            \
    REQUIRE((device) != NULL, INVALID_ARGUMENT);                                                                        \
    REQUIRE(!is_lost(device), GPU_IS_LOST)

#endif
