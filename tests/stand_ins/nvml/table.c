#define _GNU_SOURCE
#include "stand_in.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define AS_NAME(call) #call,
const char *const names[IDS] = {CALLS(AS_NAME) "*", "devices", "mig-generation", "abort-after-loss"};
const int64_t no_selectors[SELECTORS] = {ANY, ANY, ANY};
struct table table;

enum { FIXED_COLUMNS = 9 };

_Noreturn void give_up(const char *why, const char *what)
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

struct entry *find(int id, int64_t device, int64_t mig, const int64_t select[SELECTORS], unsigned fixed)
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

uint64_t integer_of(const struct entry *entry, size_t index, uint64_t turn)
{
    const struct value *value = &table.values[entry->first + index];
    return value->kind == REAL ? (uint64_t)(value->real + value->real_step * (double)turn)
                               : value->integer + value->step * turn;
}

double real_of(const struct entry *entry, size_t index, uint64_t turn)
{
    const struct value *value = &table.values[entry->first + index];
    return value->kind == REAL ? value->real + value->real_step * (double)turn
                               : (double)(value->integer + value->step * turn);
}

uint64_t number(int id, int64_t device)
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

void read_table(const char *path)
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
            .delay = strcmp(columns[7], "-") ? strtoull(columns[7], NULL, 10) * 1000 : UINT64_MAX,
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
        if (old_entries) {
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
