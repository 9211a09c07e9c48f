#define _GNU_SOURCE
#include "stand_in.h"

#include <string.h>
#include <strings.h>

static int started(struct call *call)
{
    if (call->code == SUCCESS)
        count_start();
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

EXPORT int nvmlShutdown(void)
{
    struct call call = start_call(ID(nvmlShutdown));
    if (call.code == SUCCESS)
        count_shutdown();
    return finish(&call);
}

EXPORT const char *nvmlErrorString(int code)
{
    (void)code;
    struct call call = start_call(ID(nvmlErrorString));
    finish(&call);
    return "an error that the binding does not know";
}

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
        field->timestamp = (int64_t)microseconds();
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
