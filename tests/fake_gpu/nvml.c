/* NVML, as torch and nvidia-ml-py ask it. FAKE_GPU_NVML_ERROR=15 makes each question about a card answer that number. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "fake_gpu.h"

/* Of nvml.h, which no wheel of torch's brings. A handle is a card's index plus one. */
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
typedef void *card_t;
struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
struct utilization { unsigned gpu, memory; };
struct process { unsigned pid; unsigned long long bytes; unsigned instance, compute_instance; };
struct temperature { unsigned version; int sensor, celsius; };
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char text[32]; };

/* Read at each call: a card can be lost in the middle of a program. */
static int lost(void) {
    const char *error = getenv("FAKE_GPU_NVML_ERROR");
    return error ? atoi(error) : SUCCESS;
}

#define CARD(handle)                                                                                                   \
    if (lost()) return lost();                                                                                         \
    struct fg_card card = fg_card((int)(intptr_t)(handle) - 1)
/* A fact that is the same for every card at any time. */
#define FACT(function, parameters, value, type, fact)                                                                  \
    int function parameters {                                                                                          \
        (void)handle;                                                                                                  \
        *(type *)value = fact;                                                                                         \
        return lost();                                                                                                 \
    }

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlInit(void) { return SUCCESS; }
int nvmlInitWithFlags(unsigned flags) { return (void)flags, SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int error) { return error ? "error of the simulated NVML" : "Success"; }

int nvmlSystemGetDriverVersion(char *text, unsigned size) { return snprintf(text, size, "580.65.06"), SUCCESS; }
int nvmlSystemGetNVMLVersion(char *text, unsigned size) { return snprintf(text, size, "13.580.65"), SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return *version = 13000, SUCCESS; }

/* ---- cards ---- */

int nvmlDeviceGetCount_v2(unsigned *count) { return *count = (unsigned)fg_cards(), lost(); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, card_t *handle) {
    *handle = (card_t)(intptr_t)(index + 1);
    return (int)index < fg_cards() ? lost() : INVALID_ARGUMENT;
}

int nvmlDeviceGetIndex(card_t handle, unsigned *index) { return *index = (unsigned)(intptr_t)handle - 1, lost(); }

int nvmlDeviceGetUUID(card_t handle, char *text, unsigned size) {
    CARD(handle);
    char hex[33];
    for (int i = 0; i < 16; i++) snprintf(hex + 2 * i, 3, "%02x", card.uuid[i]);
    snprintf(text, size, "GPU-%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8, hex + 12, hex + 16, hex + 20);
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *wanted, card_t *handle) {
    for (unsigned index = 0; (int)index < fg_cards(); index++) {
        char text[64];
        if (nvmlDeviceGetHandleByIndex_v2(index, handle) || nvmlDeviceGetUUID(*handle, text, sizeof text)) return lost();
        if (!strcmp(text, wanted)) return SUCCESS;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetPciInfo_v3(card_t handle, struct pci *pci) {
    memset(pci, 0, sizeof *pci);
    pci->bus = (unsigned)(intptr_t)handle;
    snprintf(pci->text, sizeof pci->text, "00000000:%02X:00.0", pci->bus);
    snprintf(pci->legacy, sizeof pci->legacy, "0000:%02X:00.0", pci->bus);
    return lost();
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *text, card_t *handle) {
    unsigned domain = 0, bus = 0;
    if (sscanf(text, "%x:%x", &domain, &bus) != 2 || !bus || (int)bus > fg_cards()) return NOT_FOUND;
    return nvmlDeviceGetHandleByIndex_v2(bus - 1, handle);
}

int nvmlDeviceGetName(card_t handle, char *text, unsigned size) {
    CARD(handle);
    return snprintf(text, size, "%s", card.name), SUCCESS;
}

int nvmlDeviceGetMemoryInfo(card_t handle, struct memory *memory) {
    CARD(handle);
    *memory = (struct memory){card.memory_bytes, card.memory_bytes - card.used_bytes, card.used_bytes};
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(card_t handle, struct memory_v2 *memory) {
    CARD(handle);
    memory->total = card.memory_bytes, memory->used = card.used_bytes, memory->reserved = 0;
    memory->free = card.memory_bytes - card.used_bytes;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(card_t handle, struct utilization *rates) {
    CARD(handle);
    *rates = (struct utilization){card.busy ? 100 : 0, card.busy ? 50 : 0};
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(card_t handle, unsigned *count, struct process *processes) {
    CARD(handle);
    unsigned room = *count;
    *count = 1;
    if (!room || !processes) return INSUFFICIENT_SIZE;
    *processes = (struct process){(unsigned)getpid(), card.used_bytes, ~0u, ~0u};
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses(card_t handle, unsigned *count, struct process *processes) {
    return nvmlDeviceGetComputeRunningProcesses_v3(handle, count, processes);
}

int nvmlDeviceGetTemperatureV(card_t handle, struct temperature *temperature) {
    (void)handle;
    temperature->celsius = 54;
    return lost();
}

/* An H100 SXM that is warm, at its boost clock, and not slowed by anything. */
FACT(nvmlDeviceGetTemperature, (card_t handle, int sensor, unsigned *celsius), ((void)sensor, celsius), unsigned, 54)
FACT(nvmlDeviceGetPowerUsage, (card_t handle, unsigned *milliwatt), milliwatt, unsigned, 350000)
FACT(nvmlDeviceGetEnforcedPowerLimit, (card_t handle, unsigned *milliwatt), milliwatt, unsigned, 700000)
FACT(nvmlDeviceGetClockInfo, (card_t handle, int clock, unsigned *mhz), mhz, unsigned, clock == 2 ? 2619 : 1980)
FACT(nvmlDeviceGetMaxClockInfo, (card_t handle, int clock, unsigned *mhz), mhz, unsigned, clock == 2 ? 2619 : 1980)
FACT(nvmlDeviceGetCurrentClocksEventReasons, (card_t handle, unsigned long long *bits), bits, unsigned long long, 0)
FACT(nvmlDeviceGetCurrentClocksThrottleReasons, (card_t handle, unsigned long long *bits), bits, unsigned long long, 0)

/* No card is part of a fabric; torch asks before it makes expandable segments, and takes no error for an answer. */
struct fabric { unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; };

int nvmlDeviceGetGpuFabricInfoV(card_t handle, struct fabric *fabric) {
    (void)handle;
    fabric->state = 0; /* NVML_GPU_FABRIC_STATE_NOT_SUPPORTED */
    return lost();
}

/* torch looks these up when it reports an error, and fails without them. */
#define ABSENT(function)                                                                                               \
    int function(void) { return NOT_SUPPORTED; }
ABSENT(nvmlDeviceGetNvLinkRemoteDeviceType)
ABSENT(nvmlDeviceGetNvLinkRemotePciInfo_v2)
ABSENT(nvmlDeviceGetP2PStatus)
