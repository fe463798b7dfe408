/* A driver's library for machines without one: what tests/real/processes/test_gpus.py says in TEST_GPUS is what it finds.
 *
 * TEST_GPUS holds the GPUs' UUIDs, separated by spaces; a GPU in MIG mode is followed by `/` and, separated by commas,
 * the UUIDs of its instances, of which there may be none. TEST_NVML_ERROR is what nvmlInit answers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX 16
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, MISMATCH = 18 };

struct device {
    char uuid[96];
    int is_mig;
    int instances;
    char instance[MAX][96];
};

static struct device devices[MAX];
static unsigned count;
static struct device found[MAX * MAX]; /* instances as devices of their own */
static unsigned found_count;

int nvmlInitWithFlags(unsigned flags) {
    const char *error = getenv("TEST_NVML_ERROR");
    char text[4096], *outer = NULL, *inner = NULL;
    (void)flags;
    if (error != NULL) return atoi(error);
    snprintf(text, sizeof text, "%s", getenv("TEST_GPUS") ? getenv("TEST_GPUS") : "");
    count = found_count = 0;
    for (char *word = strtok_r(text, " ", &outer); word != NULL; word = strtok_r(NULL, " ", &outer)) {
        struct device *device = &devices[count++];
        char *slash = strchr(word, '/');
        device->is_mig = slash != NULL;
        device->instances = 0;
        if (slash != NULL) *slash = 0;
        snprintf(device->uuid, sizeof device->uuid, "%s", word);
        if (slash == NULL) continue;
        for (char *each = strtok_r(slash + 1, ",", &inner); each != NULL; each = strtok_r(NULL, ",", &inner))
            snprintf(device->instance[device->instances++], sizeof device->instance[0], "%s", each);
    }
    return SUCCESS;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *out) { *out = count; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **out) {
    if (index >= count) return INVALID_ARGUMENT;
    *out = &devices[index];
    return SUCCESS;
}
int nvmlDeviceGetUUID(struct device *device, char *out, unsigned length) {
    snprintf(out, length, "%s", device->uuid);
    return SUCCESS;
}
int nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending) {
    if (!device->is_mig) return NOT_SUPPORTED;
    *current = *pending = 1;
    return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *out) { (void)device; *out = 7; return SUCCESS; }
int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index, struct device **out) {
    if ((int)index >= device->instances) return NOT_FOUND;
    *out = &found[found_count++];
    snprintf((*out)->uuid, sizeof (*out)->uuid, "%s", device->instance[index]);
    return SUCCESS;
}
const char *nvmlErrorString(int error) {
    return error == MISMATCH ? "Driver/library version mismatch" : error == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "?";
}
