#include "comm/nccl/nccl_functions.h"

#include "core/check.h"
#include "core/cuda/dynamic_library.h"

namespace longnet {
namespace {

NcclFunctions open_nccl() {
  const DynamicLibrary library("libnccl.so.2");
  if (!library.is_open())
    return {.missing = concat("NCCL is not on the library path: ", library.error())};
  return {.version = library.require("ncclGetVersion"),
          .error_string = library.require("ncclGetErrorString"),
          .last_error = library.require("ncclGetLastError"),
          .unique_id = library.require("ncclGetUniqueId"),
          .init = library.require("ncclCommInitRank"),
          .destroy = library.require("ncclCommDestroy"),
          .abort = library.require("ncclCommAbort"),
          .async_error = library.require("ncclCommGetAsyncError"),
          .group_start = library.require("ncclGroupStart"),
          .group_end = library.require("ncclGroupEnd"),
          .send = library.require("ncclSend"),
          .recv = library.require("ncclRecv"),
          .all_gather = library.require("ncclAllGather"),
          .broadcast = library.require("ncclBroadcast"),
          .register_buffer = library.find("ncclCommRegister"),
          .deregister_buffer = library.find("ncclCommDeregister")};
}

}  // namespace

const NcclFunctions& nccl() {
  static const NcclFunctions functions = open_nccl();
  return functions;
}

}  // namespace longnet
