/* A stand-in for libnvidia-ml.so.1: it answers what a table says, and the table may change while it runs.
 *
 * Only the hardware is made up: the loader, the symbols, the structs and the version words are NVML's own, so that a
 * test meets the real binding. tests/nvml.py writes the table that $NVML_STAND_IN_TABLE names. An answer is one line:
 *
 *     call device mig selector selector selector code delay signal value...
 *
 * "-" stands for any device, no MIG slot and any selector; a delay is in milliseconds, or "-" for ever; a value is an
 * integer, a double after "d" (both may go on by a step per call: "100+5"), or text after "'", with percent escapes.
 * Where several lines fit, the one that names the device wins, then the one that names most selectors. A call that no
 * line fits is not supported. The call "*" stands for every call of a device, or of all.
 *
 * $NVML_STAND_IN_CALLS names a file that the processes share: a number that changes with the table, then one slot per
 * call with its name and how often it was called.
 */
#ifndef STAND_IN_H
#define STAND_IN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    GPU_IS_LOST = 15,
    MEMORY = 20,
    NO_DATA = 21,
    ARGUMENT_VERSION_MISMATCH = 25,
};

#define CALLS(X) \
    X(nvmlInitWithFlags) X(nvmlInit_v2) X(nvmlShutdown) X(nvmlErrorString) \
    X(nvmlSystemGetDriverVersion) X(nvmlSystemGetNVMLVersion) \
    X(nvmlSystemGetCudaDriverVersion) X(nvmlSystemGetCudaDriverVersion_v2) \
    X(nvmlDeviceGetCount_v2) X(nvmlDeviceGetHandleByIndex_v2) X(nvmlDeviceGetHandleByUUID) \
    X(nvmlDeviceGetHandleByPciBusId_v2) \
    X(nvmlDeviceGetName) X(nvmlDeviceGetUUID) X(nvmlDeviceGetIndex) X(nvmlDeviceGetMinorNumber) \
    X(nvmlDeviceGetPciInfo_v3) X(nvmlDeviceGetBrand) X(nvmlDeviceGetArchitecture) X(nvmlDeviceGetNumGpuCores) \
    X(nvmlDeviceGetUtilizationRates) X(nvmlDeviceGetEncoderUtilization) X(nvmlDeviceGetDecoderUtilization) \
    X(nvmlDeviceGetMemoryInfo) X(nvmlDeviceGetMemoryInfo_v2) X(nvmlDeviceGetBAR1MemoryInfo) \
    X(nvmlDeviceGetTemperature) X(nvmlDeviceGetTemperatureV) \
    X(nvmlDeviceGetPowerUsage) X(nvmlDeviceGetEnforcedPowerLimit) X(nvmlDeviceGetPowerManagementLimit) \
    X(nvmlDeviceGetTotalEnergyConsumption) X(nvmlDeviceGetClockInfo) \
    X(nvmlDeviceGetMemoryErrorCounter) X(nvmlDeviceGetTotalEccErrors) X(nvmlDeviceGetEccMode) \
    X(nvmlDeviceGetFanSpeed) X(nvmlDeviceGetFanSpeed_v2) X(nvmlDeviceGetNumFans) \
    X(nvmlDeviceGetComputeRunningProcesses) X(nvmlDeviceGetComputeRunningProcesses_v2) \
    X(nvmlDeviceGetComputeRunningProcesses_v3) \
    X(nvmlDeviceGetGraphicsRunningProcesses) X(nvmlDeviceGetGraphicsRunningProcesses_v2) \
    X(nvmlDeviceGetGraphicsRunningProcesses_v3) \
    X(nvmlDeviceGetMPSComputeRunningProcesses) X(nvmlDeviceGetMPSComputeRunningProcesses_v2) \
    X(nvmlDeviceGetMPSComputeRunningProcesses_v3) \
    X(nvmlDeviceGetPcieThroughput) X(nvmlDeviceGetPcieSpeed) \
    X(nvmlDeviceGetCurrPcieLinkGeneration) X(nvmlDeviceGetCurrPcieLinkWidth) \
    X(nvmlDeviceGetMaxPcieLinkGeneration) X(nvmlDeviceGetMaxPcieLinkWidth) \
    X(nvmlDeviceGetMigMode) X(nvmlDeviceGetMaxMigDeviceCount) X(nvmlDeviceGetMigDeviceHandleByIndex) \
    X(nvmlDeviceGetDeviceHandleFromMigDeviceHandle) X(nvmlDeviceIsMigDeviceHandle) \
    X(nvmlDeviceGetGpuInstanceId) X(nvmlDeviceGetComputeInstanceId) X(nvmlDeviceGetAttributes_v2) \
    X(nvmlDeviceGetFieldValues) X(nvmlDeviceGetVirtualizationMode) \
    X(nvmlGpmQueryDeviceSupport) X(nvmlGpmQueryIfStreamingEnabled) \
    X(nvmlGpmSampleAlloc) X(nvmlGpmSampleFree) X(nvmlGpmSampleGet) X(nvmlGpmMigSampleGet) X(nvmlGpmMetricsGet)

#define ID(call) ID_##call
#define AS_ID(call) ID(call),
/* After the calls come what else the table may say. */
enum id { CALLS(AS_ID) EVERY_CALL, DEVICES, MIG_GENERATION, ABORT_AFTER_LOSS, IDS };
extern const char *const names[IDS];

enum { ANY = -1, SELECTORS = 3 };
extern const int64_t no_selectors[SELECTORS];

struct key {
    int64_t id, device, mig, select[SELECTORS];
};

struct value {
    enum { INTEGER, REAL, TEXT } kind;
    uint64_t integer, step;
    double real, real_step;
    char *text;
};

struct entry {
    struct key key;
    bool used;
    int code, signal;
    uint64_t delay; /* microseconds */
    uint64_t turns;
    size_t first, count; /* its values in the table's */
    uint64_t text;       /* a hash of the line, by which an unchanged answer is known again */
};

extern struct table {
    char *buffer;
    struct entry *entries;
    size_t capacity; /* a power of two */
    struct value *values;
    int64_t metrics[1024]; /* the GPM metrics that occur in it */
    size_t metric_count;
} table;

_Noreturn void give_up(const char *why, const char *what);

void read_table(const char *path);

/* Selectors whose bit is set in `fixed` are never taken for any. */
struct entry *find(int id, int64_t device, int64_t mig, const int64_t select[SELECTORS], unsigned fixed);
uint64_t integer_of(const struct entry *entry, size_t index, uint64_t turn);
double real_of(const struct entry *entry, size_t index, uint64_t turn);
uint64_t number(int id, int64_t device);

struct call {
    enum id id;
    enum { SYSTEM, START, BY_INDEX, BY_HANDLE, BY_SAMPLE } reach;
    const void *handle;
    int64_t device, mig, select[SELECTORS];
    int code; /* the answer where the table says nothing, then the answer */
    struct entry *entry;
    uint64_t turn;
};

/* Wait as long as the table says, and return with the lock held, which finish() and refuse() release. A change of the
 * table ends the wait. */
struct call begin(struct call call);
int finish(struct call *call);
int refuse(struct call *call, int code);

struct call system_call(enum id id, int otherwise);
struct call start_call(enum id id);
struct call device_call(enum id id, const void *handle, int64_t first, int64_t second, int64_t third);
/* For what a handle alone answers, unless the table says that it fails. */
struct call handle_call(enum id id, const void *handle);

void count_start(void);
/* One too many is no error, and what another part of the process started ends with it. */
void count_shutdown(void);

/* Both are no pointers, so whoever looks behind one crashes. */
void *handle_of(int64_t device, int64_t mig);
int64_t device_of_sample(const void *handle);

/* What the table has is written beside an error too. */
bool has(const struct call *call, size_t index);
uint64_t integer(const struct call *call, size_t index);
void put_unsigned(struct call *call, size_t index, unsigned *out);
void put_long(struct call *call, size_t index, unsigned long long *out);
void put_text(struct call *call, size_t index, char *out, size_t size);

uint64_t microseconds(void);

#define EXPORT __attribute__((visibility("default")))

#define UNSIGNED_OF_DEVICE(name) \
    EXPORT int name(const void *device, unsigned *out) \
    { \
        struct call call = device_call(ID(name), device, ANY, ANY, ANY); \
        put_unsigned(&call, 0, out); \
        return finish(&call); \
    }

#define UNSIGNED_BY_SELECTOR(name) \
    EXPORT int name(const void *device, unsigned selector, unsigned *out) \
    { \
        struct call call = device_call(ID(name), device, selector, ANY, ANY); \
        put_unsigned(&call, 0, out); \
        return finish(&call); \
    }

#define TWO_UNSIGNED_OF_DEVICE(name) \
    EXPORT int name(const void *device, unsigned *first, unsigned *second) \
    { \
        struct call call = device_call(ID(name), device, ANY, ANY, ANY); \
        put_unsigned(&call, 0, first); \
        put_unsigned(&call, 1, second); \
        return finish(&call); \
    }

#define TEXT_OF_DEVICE(name) \
    EXPORT int name(const void *device, char *out, unsigned size) \
    { \
        struct call call = device_call(ID(name), device, ANY, ANY, ANY); \
        put_text(&call, 0, out, size); \
        return finish(&call); \
    }

#define TEXT_OF_SYSTEM(name) \
    EXPORT int name(char *out, unsigned size) \
    { \
        struct call call = system_call(ID(name), NOT_SUPPORTED); \
        put_text(&call, 0, out, size); \
        return finish(&call); \
    }

#define UNSIGNED_OF_SYSTEM(name) \
    EXPORT int name(unsigned *out) \
    { \
        struct call call = system_call(ID(name), NOT_SUPPORTED); \
        put_unsigned(&call, 0, out); \
        return finish(&call); \
    }

#endif
