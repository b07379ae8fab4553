/* A stand-in for NVIDIA's libnvidia-ml.so.1, for machines without a GPU, written from NVML's public API reference.
 *
 * It answers from an inventory file and, like the real library, shows only what /dev lets the caller open: without
 * nvidiactl there is no driver, and a GPU whose node is missing or refused by the device cgroup does not exist. So what
 * it lists in a container is itself a check of the isolation. Every call holds one lock. */
#include "api.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

unsigned nvml_users;

void leave(const int *unused)
{
    (void)unused;
    inventory_unlock();
}

bool is_lost(const struct device *device)
{
    return !device->listed || device->lost || (device->parent != NULL && is_lost(device->parent));
}

static const struct device *board(const struct device *device)
{
    return device->is_mig ? device->parent : device;
}

static enum status copy_text(char *target, unsigned size, const char *text)
{
    REQUIRE(target != NULL, INVALID_ARGUMENT);
    REQUIRE(strlen(text) < size, INSUFFICIENT_SIZE);
    memcpy(target, text, strlen(text) + 1);
    return SUCCESS;
}

struct device *nth(const struct inventory *inventory, const struct device *parent, unsigned n)
{
    for (unsigned i = 0; i < inventory->count; i++) {
        struct device *device = inventory->devices[i];

        if (device->parent == parent && device_reachable(device) && n-- == 0)
            return device;
    }
    return NULL;
}

/* General */

API nvmlInitWithFlags(unsigned flags)
{
    HOLD();
    const struct inventory *inventory = inventory_now();

    (void)flags;
    REQUIRE(inventory->init_error == 0, (enum status)inventory->init_error);
    REQUIRE(control_reachable(), DRIVER_NOT_LOADED);
    nvml_users++;
    return SUCCESS;
}

API nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API nvmlInit(void) { return nvmlInitWithFlags(0); }

API nvmlShutdown(void)
{
    HOLD();
    REQUIRE(nvml_users > 0, UNINITIALIZED);
    nvml_users--;
    return SUCCESS;
}

EXPORT const char *nvmlErrorString(enum status status)
{
    switch (status) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case GPU_IS_LOST: return "GPU is lost";
    case VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

API nvmlSystemGetDriverVersion(char *version, unsigned size)
{
    ENTER();
    return copy_text(version, size, inventory->driver_version);
}

API nvmlSystemGetNVMLVersion(char *version, unsigned size)
{
    ENTER();
    return copy_text(version, size, inventory->nvml_version);
}

API nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    ENTER();
    REQUIRE(version != NULL, INVALID_ARGUMENT);
    *version = inventory->cuda_version;
    return SUCCESS;
}

API nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

/* Finding devices */

API nvmlDeviceGetCount_v2(unsigned *count)
{
    ENTER();
    REQUIRE(count != NULL, INVALID_ARGUMENT);
    *count = 0;
    while (nth(inventory, NULL, *count) != NULL)
        ++*count;
    return SUCCESS;
}

API nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

API nvmlDeviceGetHandleByIndex_v2(unsigned index, handle *found)
{
    ENTER();
    REQUIRE(found != NULL, INVALID_ARGUMENT);
    *found = nth(inventory, NULL, index);
    REQUIRE(*found != NULL, INVALID_ARGUMENT);
    return is_lost(*found) ? GPU_IS_LOST : SUCCESS;
}

API nvmlDeviceGetHandleByIndex(unsigned index, handle *found) { return nvmlDeviceGetHandleByIndex_v2(index, found); }

API nvmlDeviceGetHandleByUUID(const char *uuid, handle *found)
{
    ENTER();
    REQUIRE(uuid != NULL && found != NULL, INVALID_ARGUMENT);
    for (unsigned i = 0; i < inventory->count; i++) {
        *found = inventory->devices[i];
        if (strcmp((*found)->uuid, uuid) == 0 && device_reachable(*found))
            return is_lost(*found) ? GPU_IS_LOST : SUCCESS;
    }
    return NOT_FOUND;
}

API nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, handle *found)
{
    ENTER();
    REQUIRE(bus_id != NULL && found != NULL, INVALID_ARGUMENT);
    for (unsigned i = 0; i < inventory->count; i++) {
        *found = inventory->devices[i];
        if (!(*found)->is_mig && strcasecmp((*found)->bus_id, bus_id) == 0 && device_reachable(*found))
            return is_lost(*found) ? GPU_IS_LOST : SUCCESS;
    }
    return NOT_FOUND;
}

/* Identity */

API nvmlDeviceGetIndex(handle device, unsigned *index)
{
    ENTER_DEVICE(device);
    REQUIRE(index != NULL, INVALID_ARGUMENT);
    for (*index = 0;; ++*index) {
        const struct device *other = nth(inventory, device->parent, *index);

        REQUIRE(other != NULL, NOT_FOUND);
        if (other == device)
            return SUCCESS;
    }
}

API nvmlDeviceGetMinorNumber(handle device, unsigned *minor)
{
    ENTER_DEVICE(device);
    REQUIRE(minor != NULL, INVALID_ARGUMENT);
    REQUIRE(!device->is_mig, NOT_SUPPORTED);
    *minor = device->minor;
    return SUCCESS;
}

API nvmlDeviceGetUUID(handle device, char *uuid, unsigned size)
{
    ENTER_DEVICE(device);
    return copy_text(uuid, size, device->uuid);
}

API nvmlDeviceGetName(handle device, char *name, unsigned size)
{
    char text[2 * TEXT + 8];

    ENTER_DEVICE(device);
    if (device->is_mig)
        snprintf(text, sizeof text, "%s MIG %s", device->parent->name, device->name);
    else
        snprintf(text, sizeof text, "%s", device->name);
    return copy_text(name, size, text);
}

struct pci_info {
    char legacy_bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

static unsigned hexadecimal(const char *text)
{
    unsigned value = 0;

    for (; *text != '\0'; text++) {
        if (*text >= '0' && *text <= '9')
            value = value * 16 + (unsigned)(*text - '0');
        else if ((*text | 32) >= 'a' && (*text | 32) <= 'f')
            value = value * 16 + (unsigned)((*text | 32) - 'a' + 10);
        else
            break;
    }
    return value;
}

API nvmlDeviceGetPciInfo_v3(handle device, struct pci_info *info)
{
    const char *bus, *slot;

    ENTER_DEVICE(device);
    REQUIRE(info != NULL, INVALID_ARGUMENT);
    memset(info, 0, sizeof *info);
    snprintf(info->bus_id, sizeof info->bus_id, "%s", board(device)->bus_id);
    bus = strchr(info->bus_id, ':');
    slot = bus == NULL ? NULL : strchr(bus + 1, ':');
    REQUIRE(slot != NULL, NOT_SUPPORTED);
    info->domain = hexadecimal(info->bus_id);
    info->bus = hexadecimal(bus + 1);
    info->device = hexadecimal(slot + 1);
    snprintf(info->legacy_bus_id, sizeof info->legacy_bus_id, "%04X:%02X:%02X.0", info->domain & 0xffff, info->bus & 0xff,
             info->device & 0xff);
    return SUCCESS;
}

API nvmlDeviceGetCudaComputeCapability(handle device, int *major, int *minor)
{
    ENTER_DEVICE(device);
    REQUIRE(major != NULL && minor != NULL, INVALID_ARGUMENT);
    *major = (int)board(device)->capability_major;
    *minor = (int)board(device)->capability_minor;
    return SUCCESS;
}
