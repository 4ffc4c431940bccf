/* torch asks its own context whether the user wants cuDNN. Here the answer is no: cuDNN needs a device, and is not
   simulated. The functions are at::Context::userEnabledCuDNN() and userEnabledCuDNNSDP(); torch calls them through its
   symbol table, and a preloaded library comes first. */
#include <stdbool.h>

bool _ZNK2at7Context16userEnabledCuDNNEv(const void *context) {
    (void)context;
    return false;
}

bool _ZNK2at7Context19userEnabledCuDNNSDPEv(const void *context) {
    (void)context;
    return false;
}
