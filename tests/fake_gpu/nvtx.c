/* A tool that receives NVTX, for the log: NVTX_INJECTION64_PATH names it. Ranges and marks with their text.
 *
 * tests/ranges/nvtx_injection.c is the tool that checks what perfkit sends in all its fields; this one puts NVTX beside
 * the calls of the runtime.
 */
#define NVTX_NO_IMPL /* the types only: this is the receiving side */
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <string.h>
#include "fake_gpu.h"

static uint64_t last_id;

/* As a JSON string holds it. */
static void log_text(const char *call, const char *text) {
    char safe[512];
    size_t at = 0;
    for (; *text && at < sizeof safe - 3; text++) {
        if (*text == '"' || *text == '\\') safe[at++] = '\\';
        safe[at++] = (unsigned char)*text < ' ' ? ' ' : *text;
    }
    safe[at] = 0;
    fg_log("nvtx", call, "\"text\": \"%s\"", safe);
}

static void log_event(const char *call, const nvtxEventAttributes_t *event) {
    bool registered = event->messageType == NVTX_MESSAGE_TYPE_REGISTERED; /* a handle is the address of the text */
    bool plain = event->messageType == NVTX_MESSAGE_TYPE_ASCII;
    log_text(call, registered ? (const char *)event->message.registered : plain ? event->message.ascii : "");
}

static void NVTX_API mark_text(const char *text) { log_text("mark", text); }
static void NVTX_API mark_event(const nvtxEventAttributes_t *event) { log_event("mark", event); }
static void NVTX_API mark_domain(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event) {
    (void)domain;
    log_event("mark", event);
}

static int NVTX_API push_text(const char *text) {
    log_text("push", text);
    return 0;
}

static int NVTX_API push_event(const nvtxEventAttributes_t *event) {
    log_event("push", event);
    return 0;
}

static int NVTX_API push_domain(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event) {
    (void)domain;
    return push_event(event);
}

static int NVTX_API pop(void) {
    log_text("pop", "");
    return 0;
}

static int NVTX_API pop_domain(nvtxDomainHandle_t domain) {
    (void)domain;
    return pop();
}

static nvtxRangeId_t NVTX_API start_text(const char *text) {
    log_text("start", text);
    return __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
}

static nvtxRangeId_t NVTX_API start_domain(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event) {
    (void)domain;
    log_event("start", event);
    return __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
}

static void NVTX_API end_range(nvtxRangeId_t id) {
    (void)id;
    log_text("end", "");
}

static void NVTX_API end_domain(nvtxDomainHandle_t domain, nvtxRangeId_t id) {
    (void)domain;
    end_range(id);
}

static nvtxStringHandle_t NVTX_API register_string(nvtxDomainHandle_t domain, const char *text) {
    (void)domain;
    return (nvtxStringHandle_t)strdup(text);
}

static nvtxDomainHandle_t NVTX_API create_domain(const char *name) { return (nvtxDomainHandle_t)strdup(name); }

int NVTX_API InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
    const NvtxExportTableCallbacks *callbacks = get_export_table(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable core = NULL, domains = NULL;
    unsigned size;
    if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &core, &size)) return 0;
    if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &domains, &size)) return 0;
    *core[NVTX_CBID_CORE_MarkA] = (NvtxFunctionPointer)mark_text;
    *core[NVTX_CBID_CORE_MarkEx] = (NvtxFunctionPointer)mark_event;
    *core[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)push_text;
    *core[NVTX_CBID_CORE_RangePushEx] = (NvtxFunctionPointer)push_event;
    *core[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)pop;
    *core[NVTX_CBID_CORE_RangeStartA] = (NvtxFunctionPointer)start_text;
    *core[NVTX_CBID_CORE_RangeEnd] = (NvtxFunctionPointer)end_range;
    *domains[NVTX_CBID_CORE2_DomainMarkEx] = (NvtxFunctionPointer)mark_domain;
    *domains[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push_domain;
    *domains[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop_domain;
    *domains[NVTX_CBID_CORE2_DomainRangeStartEx] = (NvtxFunctionPointer)start_domain;
    *domains[NVTX_CBID_CORE2_DomainRangeEnd] = (NvtxFunctionPointer)end_domain;
    *domains[NVTX_CBID_CORE2_DomainRegisterStringA] = (NvtxFunctionPointer)register_string;
    *domains[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create_domain;
    return 1;
}
