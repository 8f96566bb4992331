// The functions of NCCL that this project calls, found when first asked for.
#pragma once
#include <nccl.h>

#include <string>

#include "core/cuda/dynamic_library.h"

namespace longnet {

inline const DynamicLibrary& nccl_library() {
  static const DynamicLibrary library("libnccl.so.2");
  return library;
}

struct NcclFunctions {
  // Empty when there is a library, else why not.
  std::string missing = nccl_library().is_open()
                            ? ""
                            : concat("NCCL is not on the library path: ", nccl_library().error());
  decltype(&ncclGetVersion) version = nccl_library().require("ncclGetVersion");
  decltype(&ncclGetErrorString) error_string = nccl_library().require("ncclGetErrorString");
  decltype(&ncclGetLastError) last_error = nccl_library().require("ncclGetLastError");
  decltype(&ncclGetUniqueId) unique_id = nccl_library().require("ncclGetUniqueId");
  decltype(&ncclCommInitRank) init = nccl_library().require("ncclCommInitRank");
  decltype(&ncclCommDestroy) destroy = nccl_library().require("ncclCommDestroy");
  decltype(&ncclCommAbort) abort = nccl_library().require("ncclCommAbort");
  decltype(&ncclCommGetAsyncError) async_error = nccl_library().require("ncclCommGetAsyncError");
  decltype(&ncclGroupStart) group_start = nccl_library().require("ncclGroupStart");
  decltype(&ncclGroupEnd) group_end = nccl_library().require("ncclGroupEnd");
  decltype(&ncclSend) send = nccl_library().require("ncclSend");
  decltype(&ncclRecv) recv = nccl_library().require("ncclRecv");
  decltype(&ncclAllGather) all_gather = nccl_library().require("ncclAllGather");
  decltype(&ncclBroadcast) broadcast = nccl_library().require("ncclBroadcast");
  // Null before NCCL 2.19.
  decltype(&ncclCommRegister) register_buffer = nccl_library().find("ncclCommRegister");
  decltype(&ncclCommDeregister) deregister_buffer = nccl_library().find("ncclCommDeregister");
};

const NcclFunctions& nccl();

}  // namespace longnet
