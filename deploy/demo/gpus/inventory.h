/* The simulated GPUs as the inventory file says, and what of them /dev lets this process reach.
 *
 * Records never move and are never freed: a handle that a caller keeps stays valid when the file is read again, and a
 * device that has left the file answers as a lost GPU. Callers hold inventory_lock() around everything here. */
#ifndef GPUCAMPUS_INVENTORY_H
#define GPUCAMPUS_INVENTORY_H

#include <stdbool.h>
#include <stddef.h>

enum { MAX_DEVICES = 256, MAX_PROCESSES = 32, MAX_LINKED = 64, TEXT = 96 };

/* What a health counter holds that the inventory does not give: the GPU has no such counter. */
#define NOT_OFFERED (~0U)

struct process {
    unsigned pid;
    unsigned long long bytes;
};

struct device {
    char uuid[TEXT], name[TEXT], bus_id[32];
    struct device *parent; /* of a MIG instance; NULL for a GPU */
    unsigned number, minor, instance; /* the number is the N of [gpu N] */
    unsigned gpu_instance, compute_instance, slices, multiprocessors;
    unsigned capability_major, capability_minor;
    unsigned utilization, memory_utilization, temperature, power_mw, power_limit_mw;
    unsigned ecc_uncorrected, remap_pending, remap_failed, retirement_pending, recovery_action; /* NOT_OFFERED or so */
    unsigned long long memory_bytes, used_bytes, reserved_bytes;
    unsigned long long nvlink; /* bit N: an NVLink to [gpu N] */
    bool is_mig, mig_enabled, lost, listed;
    unsigned process_count;
    struct process processes[MAX_PROCESSES];
};

struct inventory {
    char driver_version[80], nvml_version[80];
    int cuda_version;  /* 12.8 is 12080 */
    int init_error;    /* what nvmlInit answers instead of success */
    struct device *devices[MAX_DEVICES]; /* in the order of the file */
    unsigned count;
};

void inventory_lock(void);
void inventory_unlock(void);

/* The inventory as the file says now; it is read again only when it has changed. */
const struct inventory *inventory_now(void);

/* Whether this process could open the driver's control node, that is whether a driver is there at all. */
bool control_reachable(void);

/* Whether this process could open all nodes that a GPU or a MIG instance needs. */
bool device_reachable(const struct device *device);

/* The file or folder named by the variable, else `beside` next to this library when it is there, else `fallback`. */
void locate(const char *variable, const char *beside, const char *fallback, char *path, size_t size);

#endif
