#include "comm/nccl/nccl_functions.h"

#include "core/check.h"
#include "core/cuda/dynamic_library.h"

namespace longnet {
namespace {

NcclFunctions open_nccl() {
  NcclFunctions f;
  const DynamicLibrary library({"libnccl.so.2"});
  if (!library.is_open()) {
    f.missing = concat("NCCL is not on the library path: ", library.error());
    return f;
  }
  library.load(f.version, "ncclGetVersion");
  library.load(f.error_string, "ncclGetErrorString");
  library.load(f.last_error, "ncclGetLastError");
  library.load(f.unique_id, "ncclGetUniqueId");
  library.load(f.init, "ncclCommInitRank");
  library.load(f.destroy, "ncclCommDestroy");
  library.load(f.abort, "ncclCommAbort");
  library.load(f.async_error, "ncclCommGetAsyncError");
  library.load(f.group_start, "ncclGroupStart");
  library.load(f.group_end, "ncclGroupEnd");
  library.load(f.send, "ncclSend");
  library.load(f.recv, "ncclRecv");
  library.load(f.all_gather, "ncclAllGather");
  library.load(f.broadcast, "ncclBroadcast");
  f.register_buffer =
      reinterpret_cast<decltype(f.register_buffer)>(library.find("ncclCommRegister"));
  f.deregister_buffer =
      reinterpret_cast<decltype(f.deregister_buffer)>(library.find("ncclCommDeregister"));
  return f;
}

}  // namespace

const NcclFunctions& nccl() {
  static const NcclFunctions functions = open_nccl();
  return functions;
}

}  // namespace longnet
