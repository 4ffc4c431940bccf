/* A tool that receives NVTX, as small as it can be: writes one line per call to the file in NVTX_LOG.
 *
 * Without that variable it takes every call and writes nothing (benchmarks/bench_range.py). Built against
 * the headers of the wheel nvidia-nvtx, so that what a program sends is read as NVTX defines it. To this
 * tool a string or domain handle is the address of its copied text.
 */
#define _GNU_SOURCE
#define NVTX_NO_IMPL /* the types only: this is the receiving side */
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static FILE *file;
static uint64_t last_id;

static long thread(void) { return syscall(SYS_gettid); }

static const char *text_of(const void *handle) { return handle ? handle : "-"; }

static const char *message_of(const nvtxEventAttributes_t *event) {
    switch (event->messageType) {
    case NVTX_MESSAGE_TYPE_REGISTERED: return text_of(event->message.registered);
    case NVTX_MESSAGE_TYPE_ASCII: return event->message.ascii;
    default: return "-";
    }
}

static void describe(const char *what, nvtxDomainHandle_t domain, uint64_t id, const nvtxEventAttributes_t *event) {
    char payload[64] = "-";
    if (!file) return;
    if (event->payloadType == NVTX_PAYLOAD_TYPE_INT64)
        snprintf(payload, sizeof payload, "%lld", (long long)event->payload.llValue);
    if (event->payloadType == NVTX_PAYLOAD_TYPE_DOUBLE)
        snprintf(payload, sizeof payload, "%g", event->payload.dValue);
    fprintf(file, "%s\t%ld\t%s\t%llu\t%s\t%08x\t%u\t%s\n", what, thread(), text_of(domain), (unsigned long long)id,
            message_of(event), event->colorType == NVTX_COLOR_ARGB ? event->color : 0, event->category, payload);
    fflush(file);
}

static void plain(const char *what, const void *domain, uint64_t id, const char *text) {
    if (!file) return;
    fprintf(file, "%s\t%ld\t%s\t%llu\t%s\n", what, thread(), text_of(domain), (unsigned long long)id, text);
    fflush(file);
}

static void NVTX_API mark(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event) {
    describe("mark", domain, 0, event);
}
static int NVTX_API push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event) {
    describe("push", domain, 0, event);
    return 0;
}
static int NVTX_API pop(nvtxDomainHandle_t domain) {
    plain("pop", domain, 0, "-");
    return 0;
}
static nvtxRangeId_t NVTX_API start(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event) {
    uint64_t id = __sync_add_and_fetch(&last_id, 1);
    describe("start", domain, id, event);
    return id;
}
static void NVTX_API end(nvtxDomainHandle_t domain, nvtxRangeId_t id) { plain("end", domain, id, "-"); }
static void NVTX_API name_category(nvtxDomainHandle_t domain, uint32_t id, const char *text) {
    plain("category", domain, id, text);
}
static nvtxStringHandle_t NVTX_API register_string(nvtxDomainHandle_t domain, const char *text) {
    (void)domain;
    return (nvtxStringHandle_t)strdup(text);
}
static nvtxDomainHandle_t NVTX_API create(const char *text) {
    plain("create", text, 0, "-");
    return (nvtxDomainHandle_t)strdup(text);
}
static void NVTX_API destroy(nvtxDomainHandle_t domain) { plain("destroy", domain, 0, "-"); }

int NVTX_API InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
    const NvtxExportTableCallbacks *callbacks = get_export_table(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table = NULL;
    unsigned int size = 0;
    const char *path = getenv("NVTX_LOG");
    if (!callbacks || (path && !(file = fopen(path, "w")))) return 0;
    if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
    if (size <= NVTX_CBID_CORE2_DomainDestroy) return 0;
    *table[NVTX_CBID_CORE2_DomainMarkEx] = (NvtxFunctionPointer)mark;
    *table[NVTX_CBID_CORE2_DomainRangeStartEx] = (NvtxFunctionPointer)start;
    *table[NVTX_CBID_CORE2_DomainRangeEnd] = (NvtxFunctionPointer)end;
    *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
    *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
    *table[NVTX_CBID_CORE2_DomainNameCategoryA] = (NvtxFunctionPointer)name_category;
    *table[NVTX_CBID_CORE2_DomainRegisterStringA] = (NvtxFunctionPointer)register_string;
    *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create;
    *table[NVTX_CBID_CORE2_DomainDestroy] = (NvtxFunctionPointer)destroy;
    return 1;
}
