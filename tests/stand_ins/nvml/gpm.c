#define _GNU_SOURCE
#include "stand_in.h"

#include <stdlib.h>

static const uint64_t SAMPLE_TAG = 0x47;

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

int64_t device_of_sample(const void *handle)
{
    const struct sample *sample = sample_of(handle);
    return sample && sample->taken ? sample->device : ANY;
}

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
