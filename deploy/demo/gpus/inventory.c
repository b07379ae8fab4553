/* Reads the inventory file and probes the device nodes; see inventory.h for the rules. */
#include "inventory.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* NVIDIA numbers the nodes of MIG instances by a fixed scheme: /proc/driver/nvidia-caps/mig-minors. */
enum { CAP_FIRST = 3, CAP_PER_GPU = 135, CAP_PER_INSTANCE = 9 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct device records[MAX_DEVICES];
static unsigned record_count;
static struct inventory current;
static struct { dev_t device; ino_t inode; off_t size; struct timespec changed; bool valid; } seen;

void inventory_lock(void) { pthread_mutex_lock(&mutex); }
void inventory_unlock(void) { pthread_mutex_unlock(&mutex); }

/* Own parsing of plain decimal numbers: strtoull and sscanf of a new glibc do not exist in an older one. */
static const char *number(const char *text, unsigned long long *value)
{
    *value = 0;
    while (*text == ' ')
        text++;
    for (; *text >= '0' && *text <= '9'; text++)
        *value = *value * 10 + (unsigned long long)(*text - '0');
    return text;
}

static unsigned long long whole(const char *text)
{
    unsigned long long value;

    number(text, &value);
    return value;
}

/* Two numbers with one character between them: 8.0, 3/1, "4242 512". */
static void pair(const char *text, unsigned long long *first, unsigned long long *second)
{
    const char *rest = number(text, first);

    *second = *rest == '\0' ? 0 : whole(rest + 1);
}

static char *trimmed(char *text)
{
    char *end;

    while (*text == ' ' || *text == '\t')
        text++;
    end = text + strlen(text);
    while (end > text && (end[-1] == ' ' || end[-1] == '\t' || end[-1] == '\r' || end[-1] == '\n'))
        *--end = '\0';
    return text;
}

static void set_text(char *target, size_t size, const char *value) { snprintf(target, size, "%s", value); }

static void set_general(struct inventory *inventory, const char *key, const char *value)
{
    unsigned long long major, minor;

    if (strcmp(key, "driver_version") == 0)
        set_text(inventory->driver_version, sizeof inventory->driver_version, value);
    else if (strcmp(key, "nvml_version") == 0)
        set_text(inventory->nvml_version, sizeof inventory->nvml_version, value);
    else if (strcmp(key, "init_error") == 0)
        inventory->init_error = (int)whole(value);
    else if (strcmp(key, "cuda_version") == 0) {
        pair(value, &major, &minor);
        inventory->cuda_version = (int)(major * 1000 + minor * 10);
    }
}

static void add_process(struct device *device, const char *value)
{
    unsigned long long pid, mib;

    if (device->process_count == MAX_PROCESSES)
        return;
    pair(value, &pid, &mib);
    device->processes[device->process_count].pid = (unsigned)pid;
    device->processes[device->process_count++].bytes = mib << 20;
}

/* GPU numbers with something between them: 1, 3 */
static void add_links(struct device *device, const char *value)
{
    unsigned long long other;

    while (*value != '\0') {
        const char *rest = number(value, &other);

        if (rest == value) {
            value++;
            continue;
        }
        if (other < MAX_LINKED)
            device->nvlink |= 1ULL << other;
        value = rest;
    }
}

static void set_number(struct device *device, const char *key, const char *value)
{
    const struct { const char *key; unsigned *target; } numbers[] = {
        {"minor", &device->minor},
        {"gpu_instance", &device->gpu_instance},
        {"compute_instance", &device->compute_instance},
        {"slices", &device->slices},
        {"multiprocessors", &device->multiprocessors},
        {"utilization", &device->utilization},
        {"memory_utilization", &device->memory_utilization},
        {"temperature", &device->temperature},
        {"power_mw", &device->power_mw},
        {"power_limit_mw", &device->power_limit_mw},
        {"ecc_uncorrected", &device->ecc_uncorrected},
        {"remap_pending", &device->remap_pending},
        {"remap_failed", &device->remap_failed},
        {"retirement_pending", &device->retirement_pending},
        {"recovery_action", &device->recovery_action},
    };

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(key, numbers[i].key) == 0)
            *numbers[i].target = (unsigned)whole(value);
}

static void set_device(struct device *device, const char *key, const char *value)
{
    unsigned long long major, minor;

    if (strcmp(key, "uuid") == 0)
        set_text(device->uuid, sizeof device->uuid, value);
    else if (strcmp(key, "name") == 0 || strcmp(key, "profile") == 0)
        set_text(device->name, sizeof device->name, value);
    else if (strcmp(key, "bus_id") == 0)
        set_text(device->bus_id, sizeof device->bus_id, value);
    else if (strcmp(key, "memory_mib") == 0)
        device->memory_bytes = whole(value) << 20;
    else if (strcmp(key, "used_mib") == 0)
        device->used_bytes = whole(value) << 20;
    else if (strcmp(key, "reserved_mib") == 0)
        device->reserved_bytes = whole(value) << 20;
    else if (strcmp(key, "nvlink") == 0)
        add_links(device, value);
    else if (strcmp(key, "mig") == 0)
        device->mig_enabled = whole(value) != 0;
    else if (strcmp(key, "lost") == 0)
        device->lost = whole(value) != 0;
    else if (strcmp(key, "process") == 0)
        add_process(device, value);
    else if (strcmp(key, "compute_capability") == 0) {
        pair(value, &major, &minor);
        device->capability_major = (unsigned)major;
        device->capability_minor = (unsigned)minor;
    } else
        set_number(device, key, value);
}

/* Takes a section that has been read whole into the record of its UUID, so that old handles see the new state. */
static void admit(struct inventory *inventory, struct device *read)
{
    struct device *record = NULL;

    if (read->uuid[0] == '\0' || inventory->count == MAX_DEVICES)
        return;
    for (unsigned i = 0; i < inventory->count && read->is_mig; i++)
        if (!inventory->devices[i]->is_mig && inventory->devices[i]->minor == read->minor)
            read->parent = inventory->devices[i];
    if (read->is_mig && read->parent == NULL)
        return;
    for (unsigned i = 0; i < record_count && record == NULL; i++)
        if (strcmp(records[i].uuid, read->uuid) == 0)
            record = &records[i];
    if (record == NULL && record_count < MAX_DEVICES)
        record = &records[record_count++];
    if (record == NULL)
        return;
    read->listed = true;
    *record = *read;
    inventory->devices[inventory->count++] = record;
}

static bool opened_section(const char *line, struct device *device)
{
    unsigned long long gpu, instance;

    memset(device, 0, sizeof *device);
    if (strncmp(line, "[gpu ", 5) != 0 && strncmp(line, "[mig ", 5) != 0)
        return false;
    device->is_mig = line[1] == 'm';
    pair(line + 5, &gpu, &instance);
    device->number = device->minor = (unsigned)gpu;
    device->ecc_uncorrected = device->remap_pending = device->remap_failed = NOT_OFFERED;
    device->retirement_pending = device->recovery_action = NOT_OFFERED;
    device->instance = (unsigned)instance;
    return true;
}

static void read_file(FILE *file)
{
    char buffer[512];
    struct device section;
    bool in_section = false;

    memset(&current, 0, sizeof current);
    for (unsigned i = 0; i < record_count; i++)
        records[i].listed = false;
    while (fgets(buffer, sizeof buffer, file) != NULL) {
        char *line = trimmed(buffer), *equals = strchr(line, '=');

        if (*line == '[') {
            if (in_section)
                admit(&current, &section);
            in_section = opened_section(line, &section);
        } else if (*line != '#' && *line != ';' && equals != NULL) {
            *equals = '\0';
            if (in_section)
                set_device(&section, trimmed(line), trimmed(equals + 1));
            else
                set_general(&current, trimmed(line), trimmed(equals + 1));
        }
    }
    if (in_section)
        admit(&current, &section);
}

const struct inventory *inventory_now(void)
{
    char path[512];
    struct stat now;
    FILE *file;

    locate("GPUCAMPUS_SIM_INVENTORY", "inventory.ini", "/etc/gpucampus-nvml.ini", path, sizeof path);
    file = fopen(path, "re");
    if (file == NULL || fstat(fileno(file), &now) != 0) {
        memset(&current, 0, sizeof current);
        seen.valid = false;
    } else if (!seen.valid || seen.device != now.st_dev || seen.inode != now.st_ino || seen.size != now.st_size ||
               seen.changed.tv_sec != now.st_mtim.tv_sec || seen.changed.tv_nsec != now.st_mtim.tv_nsec) {
        read_file(file);
        seen.device = now.st_dev, seen.inode = now.st_ino, seen.size = now.st_size, seen.changed = now.st_mtim;
        seen.valid = true;
    }
    if (file != NULL)
        fclose(file);
    return &current;
}

/* A refused open() hides a device. No driver stands behind a simulated node, so ENXIO means: the device cgroup let it
 * pass; a plain file in place of a node just opens. */
static bool opens(const char *name, int how)
{
    char folder[512], path[640];
    int descriptor;

    locate("GPUCAMPUS_SIM_DEVICES", "dev", "/dev", folder, sizeof folder);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    descriptor = open(path, how | O_CLOEXEC | O_NONBLOCK);
    if (descriptor >= 0) {
        close(descriptor);
        return true;
    }
    return errno == ENXIO || errno == ENODEV;
}

bool control_reachable(void) { return opens("nvidiactl", O_RDWR); }

bool device_reachable(const struct device *device)
{
    char name[64];
    unsigned cap;

    snprintf(name, sizeof name, "nvidia%u", device->minor);
    if (!opens(name, O_RDWR))
        return false;
    if (!device->is_mig)
        return true;
    /* The real capability nodes are readable only (0444); asking for more would hide them from an ordinary user. */
    cap = CAP_FIRST + device->minor * CAP_PER_GPU + device->gpu_instance * CAP_PER_INSTANCE;
    snprintf(name, sizeof name, "nvidia-caps/nvidia-cap%u", cap);
    if (!opens(name, O_RDONLY))
        return false;
    snprintf(name, sizeof name, "nvidia-caps/nvidia-cap%u", cap + 1 + device->compute_instance);
    return opens(name, O_RDONLY);
}
