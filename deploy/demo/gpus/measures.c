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
    memory->used = device->used_bytes + device->reserved_bytes;
    memory->free = device->memory_bytes - memory->used;
    return SUCCESS;
}

API nvmlDeviceGetMemoryInfo_v2(handle device, struct memory_v2 *memory)
{
    ENTER_DEVICE(device);
    REQUIRE(memory != NULL, INVALID_ARGUMENT);
    REQUIRE(memory->version == (sizeof *memory | 2U << 24), VERSION_MISMATCH);
    memory->total = device->memory_bytes;
    memory->reserved = device->reserved_bytes;
    memory->used = device->used_bytes;
    memory->free = device->memory_bytes - device->used_bytes - device->reserved_bytes;
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

/* Health: what the inventory does not give is not offered, as by GPUs without ECC */

API nvmlDeviceGetTotalEccErrors(handle device, int type, int counter, unsigned long long *errors)
{
    ENTER_DEVICE(device);
    REQUIRE(errors != NULL && (type == 0 || type == 1) && (counter == 0 || counter == 1), INVALID_ARGUMENT);
    REQUIRE(device->ecc_uncorrected != NOT_OFFERED, NOT_SUPPORTED);
    *errors = type == 1 ? device->ecc_uncorrected : 0;
    return SUCCESS;
}

API nvmlDeviceGetRemappedRows(handle device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed)
{
    ENTER_DEVICE(device);
    REQUIRE(corrected != NULL && uncorrected != NULL && pending != NULL && failed != NULL, INVALID_ARGUMENT);
    REQUIRE(device->remap_pending != NOT_OFFERED || device->remap_failed != NOT_OFFERED, NOT_SUPPORTED);
    *corrected = *uncorrected = 0;
    *pending = device->remap_pending == 1;
    *failed = device->remap_failed == 1;
    return SUCCESS;
}

API nvmlDeviceGetRetiredPagesPendingStatus(handle device, unsigned *pending)
{
    ENTER_DEVICE(device);
    REQUIRE(pending != NULL, INVALID_ARGUMENT);
    REQUIRE(device->retirement_pending != NOT_OFFERED, NOT_SUPPORTED);
    *pending = device->retirement_pending;
    return SUCCESS;
}

struct field_value {
    unsigned field, scope;
    long long timestamp, latency;
    int type;
    enum status status;
    union { unsigned number; unsigned long long widest; } value;
};

API nvmlDeviceGetFieldValues(handle device, int count, struct field_value *values)
{
    enum { RECOVERY_ACTION = 230, TYPE_UNSIGNED = 1 };

    ENTER_DEVICE(device);
    REQUIRE(values != NULL && count > 0, INVALID_ARGUMENT);
    for (int i = 0; i < count; i++) {
        bool offered = values[i].field == RECOVERY_ACTION && device->recovery_action != NOT_OFFERED;

        values[i].type = TYPE_UNSIGNED;
        values[i].status = offered ? SUCCESS : NOT_SUPPORTED;
        values[i].value.widest = 0;
        values[i].value.number = offered ? device->recovery_action : 0;
    }
    return SUCCESS;
}

/* Between two GPUs */

API nvmlDeviceGetP2PStatus(handle device, handle other, int capability, int *status)
{
    enum { BY_NVLINK = 2, LINKED = 0, NOT_LINKED = 5 };

    ENTER_DEVICE(device);
    REQUIRE(other != NULL && other != device && status != NULL, INVALID_ARGUMENT);
    REQUIRE(!is_lost(other), GPU_IS_LOST);
    REQUIRE(capability == BY_NVLINK && !device->is_mig && !other->is_mig, NOT_SUPPORTED);
    *status = other->number < MAX_LINKED && (device->nvlink >> other->number & 1) ? LINKED : NOT_LINKED;
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
