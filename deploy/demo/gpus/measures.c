/* The part of the stand-in library that answers what a device does: its use and health, and its MIG instances. */
#include "api.h"

#include <string.h>

struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

API nvmlDeviceGetMemoryInfo(handle device, struct memory *memory)
{
    ENTER_DEVICE(device);
    REQUIRE(memory != NULL, INVALID_ARGUMENT);
    memory->total = device->memory_bytes;
    memory->used = device->used_bytes;
    memory->free = device->memory_bytes - device->used_bytes;
    return SUCCESS;
}

API nvmlDeviceGetMemoryInfo_v2(handle device, struct memory_v2 *memory)
{
    ENTER_DEVICE(device);
    REQUIRE(memory != NULL, INVALID_ARGUMENT);
    REQUIRE(memory->version == (sizeof *memory | 2U << 24), VERSION_MISMATCH);
    memory->total = device->memory_bytes;
    memory->reserved = 0;
    memory->used = device->used_bytes;
    memory->free = device->memory_bytes - device->used_bytes;
    return SUCCESS;
}

struct utilization {
    unsigned gpu, memory;
};

API nvmlDeviceGetUtilizationRates(handle device, struct utilization *utilization)
{
    ENTER_DEVICE(device);
    REQUIRE(utilization != NULL, INVALID_ARGUMENT);
    REQUIRE(!device->is_mig && !device->mig_enabled, NOT_SUPPORTED);
    utilization->gpu = device->utilization;
    utilization->memory = device->memory_utilization;
    return SUCCESS;
}

API nvmlDeviceGetTemperature(handle device, int sensor, unsigned *celsius)
{
    ENTER_DEVICE(device);
    REQUIRE(sensor == 0 && celsius != NULL, INVALID_ARGUMENT);
    REQUIRE(!device->is_mig, NOT_SUPPORTED);
    *celsius = device->temperature;
    return SUCCESS;
}

API nvmlDeviceGetPowerUsage(handle device, unsigned *milliwatts)
{
    ENTER_DEVICE(device);
    REQUIRE(milliwatts != NULL, INVALID_ARGUMENT);
    REQUIRE(!device->is_mig, NOT_SUPPORTED);
    *milliwatts = device->power_mw;
    return SUCCESS;
}

API nvmlDeviceGetEnforcedPowerLimit(handle device, unsigned *milliwatts)
{
    ENTER_DEVICE(device);
    REQUIRE(milliwatts != NULL, INVALID_ARGUMENT);
    REQUIRE(!device->is_mig, NOT_SUPPORTED);
    *milliwatts = device->power_limit_mw;
    return SUCCESS;
}

struct process_info {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};

API nvmlDeviceGetComputeRunningProcesses_v3(handle device, unsigned *count, struct process_info *infos)
{
    const unsigned none = ~0U;

    ENTER_DEVICE(device);
    REQUIRE(count != NULL && (infos != NULL || *count == 0), INVALID_ARGUMENT);
    if (*count < device->process_count) {
        *count = device->process_count;
        return INSUFFICIENT_SIZE;
    }
    *count = device->process_count;
    for (unsigned i = 0; i < *count; i++)
        infos[i] = (struct process_info){device->processes[i].pid, device->processes[i].bytes,
                                         device->is_mig ? device->gpu_instance : none,
                                         device->is_mig ? device->compute_instance : none};
    return SUCCESS;
}

API nvmlDeviceGetComputeRunningProcesses_v2(handle device, unsigned *count, struct process_info *infos)
{
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos);
}

API nvmlDeviceGetGraphicsRunningProcesses_v3(handle device, unsigned *count, struct process_info *infos)
{
    (void)infos;
    ENTER_DEVICE(device);
    REQUIRE(count != NULL, INVALID_ARGUMENT);
    *count = 0;
    return SUCCESS;
}

/* MIG */

API nvmlDeviceGetMigMode(handle device, unsigned *now, unsigned *pending)
{
    ENTER_DEVICE(device);
    REQUIRE(now != NULL && pending != NULL, INVALID_ARGUMENT);
    REQUIRE(!device->is_mig && device->capability_major >= 8 && device->capability_minor == 0, NOT_SUPPORTED);
    *now = *pending = device->mig_enabled;
    return SUCCESS;
}

API nvmlDeviceGetMaxMigDeviceCount(handle device, unsigned *count)
{
    ENTER_DEVICE(device);
    REQUIRE(count != NULL, INVALID_ARGUMENT);
    *count = device->mig_enabled ? 7 : 0;
    return SUCCESS;
}

API nvmlDeviceGetMigDeviceHandleByIndex(handle device, unsigned index, handle *found)
{
    ENTER_DEVICE(device);
    REQUIRE(found != NULL && !device->is_mig, INVALID_ARGUMENT);
    *found = nth(inventory, device, index);
    return *found == NULL ? NOT_FOUND : SUCCESS;
}

API nvmlDeviceIsMigDeviceHandle(handle device, unsigned *answer)
{
    ENTER_DEVICE(device);
    REQUIRE(answer != NULL, INVALID_ARGUMENT);
    *answer = device->is_mig;
    return SUCCESS;
}

API nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle device, handle *parent)
{
    ENTER_DEVICE(device);
    REQUIRE(parent != NULL && device->is_mig, INVALID_ARGUMENT);
    *parent = device->parent;
    return SUCCESS;
}

API nvmlDeviceGetGpuInstanceId(handle device, unsigned *id)
{
    ENTER_DEVICE(device);
    REQUIRE(id != NULL && device->is_mig, INVALID_ARGUMENT);
    *id = device->gpu_instance;
    return SUCCESS;
}

API nvmlDeviceGetComputeInstanceId(handle device, unsigned *id)
{
    ENTER_DEVICE(device);
    REQUIRE(id != NULL && device->is_mig, INVALID_ARGUMENT);
    *id = device->compute_instance;
    return SUCCESS;
}

struct attributes {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpeg_engines, flow_engines;
    unsigned gpu_instance_slices, compute_instance_slices;
    unsigned long long memory_mib;
};

API nvmlDeviceGetAttributes_v2(handle device, struct attributes *attributes)
{
    ENTER_DEVICE(device);
    REQUIRE(attributes != NULL && device->is_mig, INVALID_ARGUMENT);
    memset(attributes, 0, sizeof *attributes);
    attributes->multiprocessors = device->multiprocessors;
    attributes->gpu_instance_slices = attributes->compute_instance_slices = device->slices;
    attributes->memory_mib = device->memory_bytes >> 20;
    return SUCCESS;
}
