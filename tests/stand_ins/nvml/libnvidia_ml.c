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
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

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
#define AS_NAME(call) #call,
/* After the calls come what else the table may say. */
enum id { CALLS(AS_ID) EVERY_CALL, DEVICES, MIG_GENERATION, ABORT_AFTER_LOSS, IDS };
static const char *const names[IDS] = {CALLS(AS_NAME) "*", "devices", "mig-generation", "abort-after-loss"};

enum { ANY = -1, SELECTORS = 3, FIXED_COLUMNS = 9 };
static const int64_t no_selectors[SELECTORS] = {ANY, ANY, ANY};

/* ---- the table */

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
    uint64_t delay, turns;
    size_t first, count; /* its values in the table's */
    uint64_t text;       /* a hash of the line, by which an unchanged answer is known again */
};

static struct {
    char *buffer;
    struct entry *entries;
    size_t capacity; /* a power of two */
    struct value *values;
    int64_t metrics[1024]; /* the GPM metrics that occur in it */
    size_t metric_count;
    uint64_t generation;
} table;

struct slot {
    char name[56];
    _Atomic uint64_t count;
};

static struct shared {
    _Atomic uint64_t generation;
    struct slot slots[EVERY_CALL];
} *shared;

/* One lock, held while a call looks up and writes its answer, never while it is delayed. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static _Noreturn void give_up(const char *why, const char *what)
{
    fprintf(stderr, "the stand-in for libnvidia-ml.so.1: %s: %s\n", why, what);
    abort();
}

static uint64_t hash_of(const void *bytes, size_t length)
{
    uint64_t hash = 1469598103934665603u;
    for (const unsigned char *byte = bytes; length--; byte++)
        hash = (hash ^ *byte) * 1099511628211u;
    return hash;
}

static uint64_t hash_of_key(const struct key *key)
{
    uint64_t hash = 0;
    const int64_t words[] = {key->id, key->device, key->mig, key->select[0], key->select[1], key->select[2]};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        hash = (hash ^ (uint64_t)words[i]) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
    return hash;
}

static struct entry *place_of(struct entry *entries, size_t capacity, const struct key *key)
{
    for (size_t i = hash_of_key(key) & (capacity - 1);; i = (i + 1) & (capacity - 1)) {
        struct entry *entry = &entries[i];
        if (!entry->used || !memcmp(&entry->key, key, sizeof *key))
            return entry;
    }
}

/* Selectors whose bit is set in `fixed` are never taken for any. */
static struct entry *find(int id, int64_t device, int64_t mig, const int64_t select[SELECTORS], unsigned fixed)
{
    for (int anywhere = 0; anywhere < 2; anywhere++) {
        for (unsigned any = 0; any < 1u << SELECTORS; any++) {
            struct key key = {id, anywhere ? ANY : device, mig, {select[0], select[1], select[2]}};
            bool told_apart = !(any & fixed);
            for (int i = 0; i < SELECTORS; i++) {
                if (any >> i & 1) {
                    told_apart = told_apart && select[i] != ANY;
                    key.select[i] = ANY;
                }
            }
            if (!told_apart)
                continue;
            struct entry *entry = place_of(table.entries, table.capacity, &key);
            if (entry->used)
                return entry;
        }
        /* What holds for every device does not hold for the slices of one. */
        if (device == ANY || mig != ANY)
            break;
    }
    return NULL;
}

static uint64_t integer_of(const struct entry *entry, size_t index, uint64_t turn)
{
    const struct value *value = &table.values[entry->first + index];
    return value->kind == REAL ? (uint64_t)(value->real + value->real_step * (double)turn)
                               : value->integer + value->step * turn;
}

static double real_of(const struct entry *entry, size_t index, uint64_t turn)
{
    const struct value *value = &table.values[entry->first + index];
    return value->kind == REAL ? value->real + value->real_step * (double)turn
                               : (double)(value->integer + value->step * turn);
}

static uint64_t number(int id, int64_t device)
{
    const struct entry *entry = find(id, device, ANY, no_selectors, 0);
    return entry && !entry->code && entry->count ? integer_of(entry, 0, entry->turns) : 0;
}

static int id_of(const char *name)
{
    /* The table is sorted by call. */
    static int last;
    if (strcmp(names[last], name)) {
        last = 0;
        while (last < IDS && strcmp(names[last], name))
            last++;
        if (last == IDS) {
            last = 0;
            give_up("no such call", name);
        }
    }
    return last;
}

static int64_t column(const char *text)
{
    return strcmp(text, "-") ? strtoll(text, NULL, 0) : ANY;
}

static struct value parse_value(char *text)
{
    struct value value = {.kind = INTEGER};
    char *end = text;
    if (*text == '\'') {
        value.kind = TEXT;
        char *to = value.text = text + 1;
        for (const char *from = to; *from; from++, to++) {
            unsigned byte = (unsigned char)*from;
            if (*from == '%' && sscanf(from + 1, "%2x", &byte) == 1)
                from += 2;
            *to = (char)byte;
        }
        *to = 0;
        return value;
    }
    if (*text == 'd') {
        value.kind = REAL;
        value.real = strtod(text + 1, &end);
        value.real_step = *end ? strtod(end, &end) : 0;
    } else {
        value.integer = *text == '-' ? (uint64_t)strtoll(text, &end, 0) : strtoull(text, &end, 0);
        value.step = *end ? (uint64_t)strtoll(end, &end, 0) : 0;
    }
    if (*end)
        give_up("not a value", text);
    return value;
}

static size_t count_of(const char *text, char wanted)
{
    size_t count = 0;
    for (; *text; text++)
        count += *text == wanted;
    return count;
}

static void remember_metric(int64_t metric)
{
    for (size_t i = 0; i < table.metric_count; i++)
        if (table.metrics[i] == metric)
            return;
    if (table.metric_count < sizeof table.metrics / sizeof *table.metrics)
        table.metrics[table.metric_count++] = metric;
}

static char *read_file(const char *path)
{
    struct stat status;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &status))
        give_up("cannot read the table", path);
    size_t size = (size_t)status.st_size, length = 0;
    char *buffer = malloc(size + 1);
    for (ssize_t got = 1; buffer && length < size && got > 0; length += got > 0 ? (size_t)got : 0)
        got = read(file, buffer + length, size - length);
    close(file);
    if (!buffer || length < size)
        give_up("cannot read the table", path);
    buffer[size] = 0;
    return buffer;
}

static void read_table(const char *path)
{
    char *buffer = read_file(path);
    struct entry *old_entries = table.entries;
    size_t old_capacity = table.capacity, value_count = 0;

    size_t capacity = 16;
    while (capacity < 2 * count_of(buffer, '\n'))
        capacity *= 2;
    struct entry *entries = calloc(capacity, sizeof *entries);
    struct value *values = calloc(count_of(buffer, ' ') + 1, sizeof *values);
    if (!entries || !values)
        give_up("no memory for the table", path);
    table.metric_count = 0;

    char *next_line = NULL;
    for (char *line = strtok_r(buffer, "\n", &next_line); line; line = strtok_r(NULL, "\n", &next_line)) {
        uint64_t text = hash_of(line, strlen(line));
        char *columns[FIXED_COLUMNS], *next = NULL, *token = strtok_r(line, " ", &next);
        for (int i = 0; i < FIXED_COLUMNS; i++, token = strtok_r(NULL, " ", &next))
            if (!(columns[i] = token))
                give_up("a line that is too short", line);
        struct key key = {id_of(columns[0]), column(columns[1]), column(columns[2]),
                          {column(columns[3]), column(columns[4]), column(columns[5])}};
        struct entry *entry = place_of(entries, capacity, &key);
        *entry = (struct entry){
            .key = key,
            .used = true,
            .code = (int)column(columns[6]),
            .delay = strcmp(columns[7], "-") ? strtoull(columns[7], NULL, 10) : UINT64_MAX,
            .signal = (int)strtol(columns[8], NULL, 10),
            .first = value_count,
            .text = text,
        };
        for (; token; token = strtok_r(NULL, " ", &next))
            values[value_count++] = parse_value(token);
        entry->count = value_count - entry->first;
        if (key.id == ID(nvmlGpmMetricsGet) && key.select[0] != ANY)
            remember_metric(key.select[0]);
        /* What moves goes on from where it was, or a counter would fall whenever something else changes. */
        if (old_entries && table.generation) {
            const struct entry *old = place_of(old_entries, old_capacity, &key);
            if (old->used && old->text == text)
                entry->turns = old->turns;
        }
    }
    free(old_entries);
    free(table.values);
    free(table.buffer);
    table.buffer = buffer;
    table.entries = entries;
    table.capacity = capacity;
    table.values = values;
}

static unsigned initialised; /* how often more than shut down */

/* Whoever starts NVML chooses the machine: in one process it may be another one each time. */
static void attach(void)
{
    static char *attached;
    const char *path = getenv("NVML_STAND_IN_CALLS");
    if (!path)
        give_up("not set", "NVML_STAND_IN_CALLS");
    if (attached && !strcmp(attached, path))
        return;
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        give_up("cannot open", path);
    struct shared *mapped = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED)
        give_up("cannot map", path);
    if (shared)
        munmap(shared, sizeof *shared);
    shared = mapped;
    for (int i = 0; i < EVERY_CALL; i++)
        strncpy(shared->slots[i].name, names[i], sizeof shared->slots[i].name - 1);
    free(attached);
    attached = strdup(path);
    table.generation = 0;
    initialised = 0;
}

static void refresh(void)
{
    uint64_t generation = atomic_load(&shared->generation);
    if (generation == table.generation)
        return;
    const char *path = getenv("NVML_STAND_IN_TABLE");
    if (!path)
        give_up("not set", "NVML_STAND_IN_TABLE");
    read_table(path);
    table.generation = generation;
}

/* ---- handles: no pointer at all, so whoever looks behind one crashes */

enum { MAX_DEVICES = 1 << 16 };
static const uint64_t DEVICE_TAG = 0x4E, SAMPLE_TAG = 0x47;

static unsigned epoch;              /* changes with each start of NVML */
static uint8_t losses[MAX_DEVICES]; /* how often a device was found lost */

static uint64_t generation_of_mig(int64_t device)
{
    return number(MIG_GENERATION, device) & 0xFFF;
}

static void *handle_of(int64_t device, int64_t mig)
{
    return (void *)(uintptr_t)(DEVICE_TAG << 56 | (uint64_t)(epoch & 0xFFF) << 44 |
                               (uint64_t)losses[device] << 36 | generation_of_mig(device) << 24 |
                               (uint64_t)(mig + 1) << 16 | (uint64_t)device);
}

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

static void after_fork_in_child(void)
{
    /* The driver knows the parent only. */
    initialised = 0;
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void load(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* ---- GPM samples: numbers too */

struct metric_now {
    int64_t id;
    int code;
    double value;
    bool has_value;
};

/* What was current when it was taken: a metric holds for the window that ends with its second sample. */
static struct sample {
    bool live;
    uint64_t taken; /* the how-manieth, 0 for never */
    int64_t device;
    size_t count;
    struct metric_now *metrics;
} *samples;
static size_t sample_count;
static uint64_t samples_taken;

static struct sample *sample_of(const void *handle)
{
    const uint64_t number = (uintptr_t)handle & 0xFFFFFFFF;
    if ((uintptr_t)handle >> 56 != SAMPLE_TAG || number >= sample_count || !samples[number].live)
        return NULL;
    return &samples[number];
}

/* ---- a call */

struct call {
    enum id id;
    enum { SYSTEM, START, BY_INDEX, BY_HANDLE, BY_SAMPLE } reach;
    const void *handle;
    int64_t device, mig, select[SELECTORS];
    int code; /* the answer where the table says nothing, then the answer */
    struct entry *entry;
    uint64_t turn;
};

static uint64_t milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static int dead_handle(int code, const char *why)
{
    if (number(ABORT_AFTER_LOSS, ANY))
        give_up("the real library would crash", why);
    return code;
}

/* Find the device that a call is about. */
static int locate(struct call *call)
{
    if (call->reach == START)
        return SUCCESS;
    if (!initialised)
        return UNINITIALIZED;
    if (call->reach == BY_SAMPLE) {
        const struct sample *sample = sample_of(call->handle);
        call->device = sample && sample->taken ? sample->device : ANY;
    }
    if (call->reach != BY_HANDLE)
        return SUCCESS;
    uint64_t handle = (uintptr_t)call->handle;
    if (handle >> 56 != DEVICE_TAG)
        return dead_handle(INVALID_ARGUMENT, "this is no handle");
    if ((handle >> 44 & 0xFFF) != (epoch & 0xFFF))
        return dead_handle(INVALID_ARGUMENT, "a handle from before a shutdown");
    call->device = (int64_t)(handle & 0xFFFF);
    call->mig = (int64_t)(handle >> 16 & 0xFF) - 1;
    if ((handle >> 36 & 0xFF) != losses[call->device])
        dead_handle(SUCCESS, "a handle from before its device was lost");
    if ((uint64_t)call->device >= number(DEVICES, ANY))
        return GPU_IS_LOST;
    if (call->mig != ANY && (handle >> 24 & 0xFFF) != generation_of_mig(call->device))
        return INVALID_ARGUMENT;
    return SUCCESS;
}

/* Wait as long as the table says, and return with the lock held. A change of the table ends the wait. */
static struct call begin(struct call call)
{
    const uint64_t start = milliseconds();
    const int otherwise = call.code;
    bool counted = false;
    for (;;) {
        pthread_mutex_lock(&lock);
        if (!shared || call.reach == START)
            attach();
        refresh();
        if (!counted)
            atomic_fetch_add(&shared->slots[call.id].count, 1);
        counted = true;

        uint64_t delay = 0;
        call.entry = NULL;
        call.code = locate(&call);
        if (call.code == SUCCESS) {
            struct entry *every = find(EVERY_CALL, call.device, ANY, no_selectors, 0);
            call.entry = find(call.id, call.device, call.mig, call.select, 0);
            call.code = call.entry ? call.entry->code : otherwise;
            delay = call.entry ? call.entry->delay : 0;
            if (every) {
                delay = every->delay > delay ? every->delay : delay;
                if (every->code || every->signal) {
                    call.entry = every;
                    call.code = every->code;
                }
            }
        }
        uint64_t waited = milliseconds() - start;
        if (waited >= delay)
            break;
        pthread_mutex_unlock(&lock);
        uint64_t rest = delay - waited, pause = rest < 20 ? rest : 20;
        nanosleep(&(struct timespec){0, (long)pause * 1000000}, NULL);
    }
    if (call.entry) {
        if (call.entry->signal)
            raise(call.entry->signal);
        call.turn = call.entry->turns++;
    }
    return call;
}

static int finish(struct call *call)
{
    if (call->code == GPU_IS_LOST && call->device >= 0 && call->device < MAX_DEVICES)
        losses[call->device]++;
    int code = call->code;
    pthread_mutex_unlock(&lock);
    return code;
}

static int refuse(struct call *call, int code)
{
    call->code = code;
    return finish(call);
}

static struct call system_call(enum id id, int otherwise)
{
    return begin((struct call){.id = id, .device = ANY, .mig = ANY, .select = {ANY, ANY, ANY}, .code = otherwise});
}

static struct call start_call(enum id id)
{
    return begin((struct call){.id = id, .reach = START, .device = ANY, .mig = ANY, .select = {ANY, ANY, ANY}});
}

static struct call device_call(enum id id, const void *handle, int64_t first, int64_t second, int64_t third)
{
    return begin((struct call){.id = id, .reach = BY_HANDLE, .handle = handle, .device = ANY, .mig = ANY,
                               .select = {first, second, third}, .code = NOT_SUPPORTED});
}

/* For what a handle alone answers, unless the table says that it fails. */
static struct call handle_call(enum id id, const void *handle)
{
    return begin((struct call){.id = id, .reach = BY_HANDLE, .handle = handle, .device = ANY, .mig = ANY,
                               .select = {ANY, ANY, ANY}});
}

/* ---- what a call writes: also beside an error, where the table has values */

static bool has(const struct call *call, size_t index)
{
    return call->entry && index < call->entry->count;
}

static uint64_t integer(const struct call *call, size_t index)
{
    return has(call, index) ? integer_of(call->entry, index, call->turn) : 0;
}

static void put_unsigned(struct call *call, size_t index, unsigned *out)
{
    if (has(call, index) && out)
        *out = (unsigned)integer(call, index);
}

static void put_long(struct call *call, size_t index, unsigned long long *out)
{
    if (has(call, index) && out)
        *out = integer(call, index);
}

static void put_text(struct call *call, size_t index, char *out, size_t size)
{
    if (!has(call, index) || !out)
        return;
    const char *text = table.values[call->entry->first + index].text;
    if (!text)
        give_up("not a text", names[call->id]);
    if (strlen(text) < size)
        strcpy(out, text);
    else if (call->code == SUCCESS)
        call->code = INSUFFICIENT_SIZE;
}

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

/* ---- start and stop */

static int started(struct call *call)
{
    if (call->code == SUCCESS && !initialised++)
        epoch++;
    return finish(call);
}

EXPORT int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    struct call call = start_call(ID(nvmlInitWithFlags));
    return started(&call);
}

EXPORT int nvmlInit_v2(void)
{
    struct call call = start_call(ID(nvmlInit_v2));
    return started(&call);
}

/* One shutdown too many is no error, and what another part of the process started ends with it. */
EXPORT int nvmlShutdown(void)
{
    struct call call = begin((struct call){.id = ID(nvmlShutdown), .reach = initialised ? SYSTEM : START,
                                           .device = ANY, .mig = ANY, .select = {ANY, ANY, ANY}});
    if (call.code == SUCCESS && initialised)
        initialised--;
    return finish(&call);
}

EXPORT const char *nvmlErrorString(int code)
{
    (void)code;
    struct call call = start_call(ID(nvmlErrorString));
    finish(&call);
    return "an error that the binding does not know";
}

/* ---- the system and its devices */

TEXT_OF_SYSTEM(nvmlSystemGetDriverVersion)
TEXT_OF_SYSTEM(nvmlSystemGetNVMLVersion)
UNSIGNED_OF_SYSTEM(nvmlSystemGetCudaDriverVersion)
UNSIGNED_OF_SYSTEM(nvmlSystemGetCudaDriverVersion_v2)

EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
    struct call call = system_call(ID(nvmlDeviceGetCount_v2), SUCCESS);
    if (has(&call, 0))
        put_unsigned(&call, 0, count);
    else if (call.code == SUCCESS)
        *count = (unsigned)number(DEVICES, ANY);
    return finish(&call);
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle)
{
    struct call call = begin((struct call){.id = ID(nvmlDeviceGetHandleByIndex_v2), .reach = BY_INDEX,
                                           .device = index, .mig = ANY, .select = {ANY, ANY, ANY}});
    if (call.code)
        return finish(&call);
    if (index >= number(DEVICES, ANY))
        return refuse(&call, INVALID_ARGUMENT);
    *handle = handle_of(index, ANY);
    return finish(&call);
}

static bool is_text(int id, int64_t device, int64_t mig, size_t index, const char *text)
{
    const struct entry *entry = find(id, device, mig, no_selectors, 0);
    const char *own = entry && index < entry->count ? table.values[entry->first + index].text : NULL;
    return own && !strcasecmp(own, text);
}

enum { MAX_MIG = 16, PCI_BUS_ID = 6 };

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle)
{
    struct call call = system_call(ID(nvmlDeviceGetHandleByUUID), SUCCESS);
    if (call.code)
        return finish(&call);
    for (int64_t device = 0, devices = (int64_t)number(DEVICES, ANY); device < devices; device++) {
        for (int64_t mig = ANY; mig < MAX_MIG; mig++) {
            if (is_text(ID(nvmlDeviceGetUUID), device, mig, 0, uuid)) {
                *handle = handle_of(device, mig);
                return finish(&call);
            }
        }
    }
    return refuse(&call, NOT_FOUND);
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle)
{
    struct call call = system_call(ID(nvmlDeviceGetHandleByPciBusId_v2), SUCCESS);
    if (call.code)
        return finish(&call);
    for (int64_t device = 0, devices = (int64_t)number(DEVICES, ANY); device < devices; device++) {
        if (is_text(ID(nvmlDeviceGetPciInfo_v3), device, ANY, PCI_BUS_ID, bus)) {
            *handle = handle_of(device, ANY);
            return finish(&call);
        }
    }
    return refuse(&call, NOT_FOUND);
}

TEXT_OF_DEVICE(nvmlDeviceGetName)
TEXT_OF_DEVICE(nvmlDeviceGetUUID)

EXPORT int nvmlDeviceGetIndex(const void *device, unsigned *index)
{
    struct call call = handle_call(ID(nvmlDeviceGetIndex), device);
    if (has(&call, 0))
        put_unsigned(&call, 0, index);
    else if (call.code == SUCCESS)
        *index = (unsigned)call.device;
    return finish(&call);
}

struct pci {
    char bus_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};
_Static_assert(sizeof(struct pci) == 68, "nvmlPciInfo_t");

EXPORT int nvmlDeviceGetPciInfo_v3(const void *device, struct pci *out)
{
    struct call call = device_call(ID(nvmlDeviceGetPciInfo_v3), device, ANY, ANY, ANY);
    put_text(&call, 0, out->bus_legacy, sizeof out->bus_legacy);
    put_unsigned(&call, 1, &out->domain);
    put_unsigned(&call, 2, &out->bus);
    put_unsigned(&call, 3, &out->device);
    put_unsigned(&call, 4, &out->device_id);
    put_unsigned(&call, 5, &out->subsystem_id);
    put_text(&call, PCI_BUS_ID, out->bus_id, sizeof out->bus_id);
    return finish(&call);
}

UNSIGNED_OF_DEVICE(nvmlDeviceGetMinorNumber)
UNSIGNED_OF_DEVICE(nvmlDeviceGetBrand)
UNSIGNED_OF_DEVICE(nvmlDeviceGetArchitecture)
UNSIGNED_OF_DEVICE(nvmlDeviceGetNumGpuCores)
UNSIGNED_OF_DEVICE(nvmlDeviceGetVirtualizationMode)

/* ---- load, memory, sensors */

struct utilization {
    unsigned gpu, memory;
};
_Static_assert(sizeof(struct utilization) == 8, "nvmlUtilization_t");

EXPORT int nvmlDeviceGetUtilizationRates(const void *device, struct utilization *out)
{
    struct call call = device_call(ID(nvmlDeviceGetUtilizationRates), device, ANY, ANY, ANY);
    put_unsigned(&call, 0, &out->gpu);
    put_unsigned(&call, 1, &out->memory);
    return finish(&call);
}

TWO_UNSIGNED_OF_DEVICE(nvmlDeviceGetEncoderUtilization)
TWO_UNSIGNED_OF_DEVICE(nvmlDeviceGetDecoderUtilization)

static int three_longs(struct call call, unsigned long long out[3])
{
    for (size_t i = 0; i < 3; i++)
        put_long(&call, i, &out[i]);
    return finish(&call);
}

/* total, free, used */
EXPORT int nvmlDeviceGetMemoryInfo(const void *device, unsigned long long out[3])
{
    return three_longs(device_call(ID(nvmlDeviceGetMemoryInfo), device, ANY, ANY, ANY), out);
}

/* total, free, used */
EXPORT int nvmlDeviceGetBAR1MemoryInfo(const void *device, unsigned long long out[3])
{
    return three_longs(device_call(ID(nvmlDeviceGetBAR1MemoryInfo), device, ANY, ANY, ANY), out);
}

struct memory2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
_Static_assert(sizeof(struct memory2) == 40, "nvmlMemory_v2_t");

EXPORT int nvmlDeviceGetMemoryInfo_v2(const void *device, struct memory2 *out)
{
    struct call call = device_call(ID(nvmlDeviceGetMemoryInfo_v2), device, ANY, ANY, ANY);
    if (call.code != UNINITIALIZED && out->version != (sizeof *out | 2 << 24))
        return refuse(&call, ARGUMENT_VERSION_MISMATCH);
    put_long(&call, 0, &out->total);
    put_long(&call, 1, &out->reserved);
    put_long(&call, 2, &out->free);
    put_long(&call, 3, &out->used);
    return finish(&call);
}

UNSIGNED_BY_SELECTOR(nvmlDeviceGetTemperature)

struct temperature {
    unsigned version, sensor;
    int temperature;
};
_Static_assert(sizeof(struct temperature) == 12, "nvmlTemperature_v1_t");

EXPORT int nvmlDeviceGetTemperatureV(const void *device, struct temperature *out)
{
    struct call call = device_call(ID(nvmlDeviceGetTemperatureV), device, out->sensor, ANY, ANY);
    if (call.code != UNINITIALIZED && out->version != (sizeof *out | 1 << 24))
        return refuse(&call, ARGUMENT_VERSION_MISMATCH);
    if (has(&call, 0))
        out->temperature = (int)integer(&call, 0);
    return finish(&call);
}

UNSIGNED_OF_DEVICE(nvmlDeviceGetPowerUsage)
UNSIGNED_OF_DEVICE(nvmlDeviceGetEnforcedPowerLimit)
UNSIGNED_OF_DEVICE(nvmlDeviceGetPowerManagementLimit)
UNSIGNED_BY_SELECTOR(nvmlDeviceGetClockInfo)
UNSIGNED_OF_DEVICE(nvmlDeviceGetFanSpeed)
UNSIGNED_BY_SELECTOR(nvmlDeviceGetFanSpeed_v2)
UNSIGNED_OF_DEVICE(nvmlDeviceGetNumFans)
TWO_UNSIGNED_OF_DEVICE(nvmlDeviceGetEccMode)

EXPORT int nvmlDeviceGetTotalEnergyConsumption(const void *device, unsigned long long *millijoules)
{
    struct call call = device_call(ID(nvmlDeviceGetTotalEnergyConsumption), device, ANY, ANY, ANY);
    put_long(&call, 0, millijoules);
    return finish(&call);
}

EXPORT int nvmlDeviceGetMemoryErrorCounter(const void *device, unsigned error, unsigned counter, unsigned location,
                                           unsigned long long *count)
{
    struct call call = device_call(ID(nvmlDeviceGetMemoryErrorCounter), device, error, counter, location);
    put_long(&call, 0, count);
    return finish(&call);
}

EXPORT int nvmlDeviceGetTotalEccErrors(const void *device, unsigned error, unsigned counter,
                                       unsigned long long *count)
{
    struct call call = device_call(ID(nvmlDeviceGetTotalEccErrors), device, error, counter, ANY);
    put_long(&call, 0, count);
    return finish(&call);
}

UNSIGNED_BY_SELECTOR(nvmlDeviceGetPcieThroughput)
UNSIGNED_OF_DEVICE(nvmlDeviceGetPcieSpeed)
UNSIGNED_OF_DEVICE(nvmlDeviceGetCurrPcieLinkGeneration)
UNSIGNED_OF_DEVICE(nvmlDeviceGetCurrPcieLinkWidth)
UNSIGNED_OF_DEVICE(nvmlDeviceGetMaxPcieLinkGeneration)
UNSIGNED_OF_DEVICE(nvmlDeviceGetMaxPcieLinkWidth)

/* ---- processes */

struct process1 {
    unsigned pid;
    unsigned long long memory;
};
_Static_assert(sizeof(struct process1) == 16, "nvmlProcessInfo_v1_t");

struct process {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
};
_Static_assert(sizeof(struct process) == 24, "nvmlProcessInfo_t");

enum { PROCESS_VALUES = 4 };

static int processes(struct call call, unsigned *room, void *out, bool old)
{
    if (call.code)
        return finish(&call);
    unsigned count = call.entry ? (unsigned)(call.entry->count / PROCESS_VALUES) : 0;
    if (!out || *room < count) {
        *room = count;
        return refuse(&call, count ? INSUFFICIENT_SIZE : SUCCESS);
    }
    *room = count;
    for (unsigned i = 0; i < count; i++) {
        const size_t at = (size_t)i * PROCESS_VALUES;
        if (old)
            ((struct process1 *)out)[i] = (struct process1){(unsigned)integer(&call, at), integer(&call, at + 1)};
        else
            ((struct process *)out)[i] =
                (struct process){(unsigned)integer(&call, at), integer(&call, at + 1),
                                 (unsigned)integer(&call, at + 2), (unsigned)integer(&call, at + 3)};
    }
    return finish(&call);
}

#define PROCESSES(name, old) \
    EXPORT int name(const void *device, unsigned *count, void *out) \
    { \
        return processes(device_call(ID(name), device, ANY, ANY, ANY), count, out, old); \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses, true)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, false)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, false)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, true)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, false)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, false)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, true)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, false)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, false)

/* ---- MIG */

TWO_UNSIGNED_OF_DEVICE(nvmlDeviceGetMigMode)
UNSIGNED_OF_DEVICE(nvmlDeviceGetMaxMigDeviceCount)
UNSIGNED_OF_DEVICE(nvmlDeviceGetGpuInstanceId)
UNSIGNED_OF_DEVICE(nvmlDeviceGetComputeInstanceId)

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(const void *device, unsigned index, void **handle)
{
    struct call call = device_call(ID(nvmlDeviceGetMigDeviceHandleByIndex), device, index, ANY, ANY);
    if (!call.entry && call.code == NOT_SUPPORTED) {
        const uint64_t slots = number(ID(nvmlDeviceGetMaxMigDeviceCount), call.device);
        if (slots)
            call.code = index < slots ? NOT_FOUND : INVALID_ARGUMENT;
    }
    if (call.code == SUCCESS)
        *handle = handle_of(call.device, index);
    return finish(&call);
}

EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(const void *mig, void **handle)
{
    struct call call = handle_call(ID(nvmlDeviceGetDeviceHandleFromMigDeviceHandle), mig);
    if (call.code == SUCCESS && call.mig == ANY)
        call.code = INVALID_ARGUMENT;
    if (call.code == SUCCESS)
        *handle = handle_of(call.device, ANY);
    return finish(&call);
}

EXPORT int nvmlDeviceIsMigDeviceHandle(const void *device, unsigned *is_mig)
{
    struct call call = handle_call(ID(nvmlDeviceIsMigDeviceHandle), device);
    if (call.code == SUCCESS)
        *is_mig = call.mig != ANY;
    return finish(&call);
}

struct attributes {
    unsigned numbers[8];
    unsigned long long memory_mib;
};
_Static_assert(sizeof(struct attributes) == 40, "nvmlDeviceAttributes_t");

EXPORT int nvmlDeviceGetAttributes_v2(const void *device, struct attributes *out)
{
    struct call call = device_call(ID(nvmlDeviceGetAttributes_v2), device, ANY, ANY, ANY);
    for (size_t i = 0; i < 8; i++)
        put_unsigned(&call, i, &out->numbers[i]);
    put_long(&call, 8, &out->memory_mib);
    return finish(&call);
}

/* ---- fields */

struct field {
    uint32_t id, scope;
    int64_t timestamp, latency;
    unsigned type;
    int code;
    union {
        double real;
        unsigned long long integer;
    } value;
};
_Static_assert(sizeof(struct field) == 40, "nvmlFieldValue_t");

enum { TYPE_DOUBLE = 0, TYPE_UNSIGNED_LONG_LONG = 3 };

EXPORT int nvmlDeviceGetFieldValues(const void *device, int count, struct field *fields)
{
    struct call call = handle_call(ID(nvmlDeviceGetFieldValues), device);
    for (int i = 0; call.code == SUCCESS && i < count; i++) {
        struct field *field = &fields[i];
        const int64_t select[SELECTORS] = {field->id, field->scope, ANY};
        struct entry *entry = find(call.id, call.device, call.mig, select, 1);
        field->code = entry ? entry->code : NOT_SUPPORTED;
        field->timestamp = (int64_t)milliseconds() * 1000;
        field->latency = 0;
        if (!entry || !entry->count)
            continue;
        const uint64_t turn = entry->turns++;
        if (table.values[entry->first].kind == REAL) {
            field->type = TYPE_DOUBLE;
            field->value.real = real_of(entry, 0, turn);
        } else {
            field->type = TYPE_UNSIGNED_LONG_LONG;
            field->value.integer = integer_of(entry, 0, turn);
        }
    }
    return finish(&call);
}

/* ---- GPM */

struct gpm_support {
    unsigned version, supported;
};
_Static_assert(sizeof(struct gpm_support) == 8, "nvmlGpmSupport_t");

EXPORT int nvmlGpmQueryDeviceSupport(const void *device, struct gpm_support *out)
{
    struct call call = device_call(ID(nvmlGpmQueryDeviceSupport), device, ANY, ANY, ANY);
    if (call.code != UNINITIALIZED && out->version != 1)
        return refuse(&call, ARGUMENT_VERSION_MISMATCH);
    put_unsigned(&call, 0, &out->supported);
    return finish(&call);
}

UNSIGNED_OF_DEVICE(nvmlGpmQueryIfStreamingEnabled)

EXPORT int nvmlGpmSampleAlloc(void **handle)
{
    struct call call = system_call(ID(nvmlGpmSampleAlloc), SUCCESS);
    if (call.code)
        return finish(&call);
    struct sample *grown = realloc(samples, (sample_count + 1) * sizeof *samples);
    if (!grown)
        return refuse(&call, MEMORY);
    samples = grown;
    samples[sample_count] = (struct sample){.live = true};
    *handle = (void *)(uintptr_t)(SAMPLE_TAG << 56 | sample_count++);
    return finish(&call);
}

EXPORT int nvmlGpmSampleFree(void *handle)
{
    struct call call = system_call(ID(nvmlGpmSampleFree), SUCCESS);
    struct sample *sample = sample_of(handle);
    if (call.code)
        return finish(&call);
    if (!sample)
        return refuse(&call, INVALID_ARGUMENT);
    free(sample->metrics);
    *sample = (struct sample){.live = false};
    return finish(&call);
}

static int take_sample(struct call call, int64_t instance, const void *handle)
{
    struct sample *sample = sample_of(handle);
    if (!call.entry && call.code == NOT_SUPPORTED && number(ID(nvmlGpmQueryDeviceSupport), call.device))
        call.code = SUCCESS;
    if (call.code)
        return finish(&call);
    if (!sample)
        return refuse(&call, INVALID_ARGUMENT);
    struct metric_now *metrics = calloc(table.metric_count + 1, sizeof *metrics);
    if (!metrics)
        return refuse(&call, MEMORY);
    free(sample->metrics);
    *sample = (struct sample){.live = true, .taken = ++samples_taken, .device = call.device, .metrics = metrics};
    for (size_t i = 0; i < table.metric_count; i++) {
        const int64_t select[SELECTORS] = {table.metrics[i], instance, ANY};
        struct entry *entry = find(ID(nvmlGpmMetricsGet), call.device, ANY, select, 1 | 2);
        if (!entry)
            continue;
        struct metric_now *metric = &metrics[sample->count++];
        *metric = (struct metric_now){.id = table.metrics[i], .code = entry->code, .has_value = entry->count};
        if (entry->count)
            metric->value = real_of(entry, 0, entry->turns++);
    }
    return finish(&call);
}

EXPORT int nvmlGpmSampleGet(const void *device, const void *sample)
{
    return take_sample(device_call(ID(nvmlGpmSampleGet), device, ANY, ANY, ANY), ANY, sample);
}

EXPORT int nvmlGpmMigSampleGet(const void *device, unsigned instance, const void *sample)
{
    return take_sample(device_call(ID(nvmlGpmMigSampleGet), device, instance, ANY, ANY), instance, sample);
}

struct gpm_metric {
    unsigned id;
    int code;
    double value;
    const char *short_name, *long_name, *unit;
};
_Static_assert(sizeof(struct gpm_metric) == 40, "nvmlGpmMetric_t");

struct gpm_metrics {
    unsigned version, count;
    const void *first, *second;
    struct gpm_metric metrics[]; /* its length differs between the bindings: only the count tells */
};

EXPORT int nvmlGpmMetricsGet(struct gpm_metrics *out)
{
    struct call call = begin((struct call){.id = ID(nvmlGpmMetricsGet), .reach = BY_SAMPLE, .handle = out->second,
                                           .device = ANY, .mig = ANY, .select = {ANY, ANY, ANY}});
    if (call.code)
        return finish(&call);
    if (out->version != 1)
        return refuse(&call, ARGUMENT_VERSION_MISMATCH);
    const struct sample *first = sample_of(out->first), *second = sample_of(out->second);
    if (!first || !second)
        return refuse(&call, INVALID_ARGUMENT);
    if (!first->taken || !second->taken)
        return refuse(&call, NO_DATA);
    if (first->taken >= second->taken || first->device != second->device)
        return refuse(&call, INVALID_ARGUMENT);
    for (unsigned i = 0; i < out->count; i++) {
        struct gpm_metric *metric = &out->metrics[i];
        metric->code = NOT_SUPPORTED;
        metric->short_name = metric->long_name = metric->unit = "";
        for (size_t j = 0; j < second->count; j++) {
            if (second->metrics[j].id != metric->id)
                continue;
            metric->code = second->metrics[j].code;
            if (second->metrics[j].has_value)
                metric->value = second->metrics[j].value;
        }
    }
    return finish(&call);
}
