/* A tool that receives NVTX, as small as it can be: writes one line per call to the file in NVTX_LOG.
 *
 * Without that variable it takes every call and writes nothing (benchmarks/bench_range.py).
 *
 * The structures are those of NVTX 3 (nvToolsExt.h, nvtxDetail/nvtxTypes.h), declared here as far as they
 * are used, so that no header is needed. A string or domain handle is the address of its copied text.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct {
    uint16_t version;
    uint16_t size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type; /* 0 none, 2 int64, 3 double */
    int32_t reserved;
    union {
        int64_t integer;
        double real;
    } payload;
    int32_t message_type; /* 3 registered */
    union {
        const char *ascii;
        const char *registered;
    } message;
} attributes_t;

typedef void (*function_t)(void);
typedef struct {
    size_t struct_size;
    int (*get_module_function_table)(int module, function_t ***table, unsigned int *size);
} callbacks_t;
typedef const void *(*get_export_table_t)(uint32_t id);

enum { ETID_CALLBACKS = 1, MODULE_CORE2 = 5 };
enum { MARK = 1, START = 2, END = 3, PUSH = 4, POP = 5, NAME_CATEGORY = 8, REGISTER = 10, CREATE = 12, DESTROY = 14 };

static FILE *file;
static uint64_t last_id;

static long thread(void) { return syscall(SYS_gettid); }

static const char *name(const char *domain) { return domain ? domain : "-"; }

static void describe(const char *what, const char *domain, uint64_t id, const attributes_t *a) {
    if (!file) return;
    char payload[64] = "-";
    if (a->payload_type == 2) snprintf(payload, sizeof payload, "%lld", (long long)a->payload.integer);
    if (a->payload_type == 3) snprintf(payload, sizeof payload, "%g", a->payload.real);
    fprintf(file, "%s\t%ld\t%s\t%llu\t%s\t%08x\t%u\t%s\n", what, thread(), name(domain), (unsigned long long)id,
            a->message_type ? a->message.registered : "-", a->color, a->category, payload);
    fflush(file);
}

static void plain(const char *what, const char *domain, uint64_t id, const char *text) {
    if (!file) return;
    fprintf(file, "%s\t%ld\t%s\t%llu\t%s\n", what, thread(), name(domain), (unsigned long long)id, text);
    fflush(file);
}

static void mark(const char *domain, const attributes_t *a) { describe("mark", domain, 0, a); }
static int push(const char *domain, const attributes_t *a) {
    describe("push", domain, 0, a);
    return 0;
}
static int pop(const char *domain) {
    plain("pop", domain, 0, "-");
    return 0;
}
static uint64_t start(const char *domain, const attributes_t *a) {
    uint64_t id = __sync_add_and_fetch(&last_id, 1);
    describe("start", domain, id, a);
    return id;
}
static void end(const char *domain, uint64_t id) { plain("end", domain, id, "-"); }
static void name_category(const char *domain, uint32_t id, const char *text) { plain("category", domain, id, text); }
static const char *register_string(const char *domain, const char *text) {
    (void)domain;
    return strdup(text);
}
static const char *create(const char *text) {
    plain("create", text, 0, "-");
    return strdup(text);
}
static void destroy(const char *domain) { plain("destroy", domain, 0, "-"); }

int InitializeInjectionNvtx2(get_export_table_t get_export_table) {
    const callbacks_t *callbacks = get_export_table(ETID_CALLBACKS);
    function_t **table = NULL;
    unsigned int size = 0;
    const char *path = getenv("NVTX_LOG");
    if (!callbacks || (path && !(file = fopen(path, "w")))) return 0;
    if (!callbacks->get_module_function_table(MODULE_CORE2, &table, &size)) return 0;
    *table[MARK] = (function_t)mark;
    *table[START] = (function_t)start;
    *table[END] = (function_t)end;
    *table[PUSH] = (function_t)push;
    *table[POP] = (function_t)pop;
    *table[NAME_CATEGORY] = (function_t)name_category;
    *table[REGISTER] = (function_t)register_string;
    *table[CREATE] = (function_t)create;
    *table[DESTROY] = (function_t)destroy;
    return 1;
}
