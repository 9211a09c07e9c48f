#define _GNU_SOURCE
#include "stand_in.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

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

static char *table_path;
static uint64_t loaded_generation;
static unsigned initialised; /* how often more than shut down */

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    if (!value)
        give_up("not set", name);
    return value;
}

static void attach(void)
{
    const char *path = variable("NVML_STAND_IN_CALLS");
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        give_up("cannot open", path);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (shared == MAP_FAILED)
        give_up("cannot map", path);
    for (int i = 0; i < EVERY_CALL; i++)
        strncpy(shared->slots[i].name, names[i], sizeof shared->slots[i].name - 1);
    table_path = strdup(variable("NVML_STAND_IN_TABLE"));
}

static void refresh(void)
{
    uint64_t generation = atomic_load(&shared->generation);
    if (generation == loaded_generation)
        return;
    read_table(table_path);
    loaded_generation = generation;
}

enum { MAX_DEVICES = 1 << 16 };
static const uint64_t DEVICE_TAG = 0x4E;

static unsigned epoch;              /* changes with each start of NVML */
static uint8_t losses[MAX_DEVICES]; /* how often a device was found lost */

static uint64_t generation_of_mig(int64_t device)
{
    return number(MIG_GENERATION, device) & 0xFFF;
}

void *handle_of(int64_t device, int64_t mig)
{
    return (void *)(uintptr_t)(DEVICE_TAG << 56 | (uint64_t)(epoch & 0xFFF) << 44 |
                               (uint64_t)losses[device] << 36 | generation_of_mig(device) << 24 |
                               (uint64_t)(mig + 1) << 16 | (uint64_t)device);
}

void count_start(void)
{
    if (!initialised++)
        epoch++;
}

void count_shutdown(void)
{
    if (initialised)
        initialised--;
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

uint64_t microseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
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
        call->device = device_of_sample(call->handle);
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

enum { LONGEST_PAUSE = 20000 }; /* microseconds, after which a change of the table is seen */

struct call begin(struct call call)
{
    const uint64_t start = microseconds();
    const int otherwise = call.code;
    bool counted = false;
    for (;;) {
        pthread_mutex_lock(&lock);
        if (!shared)
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
        uint64_t waited = microseconds() - start;
        if (waited >= delay)
            break;
        pthread_mutex_unlock(&lock);
        uint64_t rest = delay - waited, pause = rest < LONGEST_PAUSE ? rest : LONGEST_PAUSE;
        nanosleep(&(struct timespec){0, (long)pause * 1000}, NULL);
    }
    if (call.entry) {
        if (call.entry->signal)
            raise(call.entry->signal);
        call.turn = call.entry->turns++;
    }
    return call;
}

int finish(struct call *call)
{
    if (call->code == GPU_IS_LOST && call->device >= 0 && call->device < MAX_DEVICES)
        losses[call->device]++;
    int code = call->code;
    pthread_mutex_unlock(&lock);
    return code;
}

int refuse(struct call *call, int code)
{
    call->code = code;
    return finish(call);
}

struct call system_call(enum id id, int otherwise)
{
    return begin((struct call){.id = id, .device = ANY, .mig = ANY, .select = {ANY, ANY, ANY}, .code = otherwise});
}

struct call start_call(enum id id)
{
    return begin((struct call){.id = id, .reach = START, .device = ANY, .mig = ANY, .select = {ANY, ANY, ANY}});
}

struct call device_call(enum id id, const void *handle, int64_t first, int64_t second, int64_t third)
{
    return begin((struct call){.id = id, .reach = BY_HANDLE, .handle = handle, .device = ANY, .mig = ANY,
                               .select = {first, second, third}, .code = NOT_SUPPORTED});
}

struct call handle_call(enum id id, const void *handle)
{
    return begin((struct call){.id = id, .reach = BY_HANDLE, .handle = handle, .device = ANY, .mig = ANY,
                               .select = {ANY, ANY, ANY}});
}

bool has(const struct call *call, size_t index)
{
    return call->entry && index < call->entry->count;
}

uint64_t integer(const struct call *call, size_t index)
{
    return has(call, index) ? integer_of(call->entry, index, call->turn) : 0;
}

void put_unsigned(struct call *call, size_t index, unsigned *out)
{
    if (has(call, index) && out)
        *out = (unsigned)integer(call, index);
}

void put_long(struct call *call, size_t index, unsigned long long *out)
{
    if (has(call, index) && out)
        *out = integer(call, index);
}

void put_text(struct call *call, size_t index, char *out, size_t size)
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
