// The functions of NCCL that this project calls, found when first asked for.
#pragma once
#include <nccl.h>

#include <string>

#include "core/cuda/dynamic_library.h"

namespace longnet {

struct NcclFunctions {
  DynamicLibrary library{"libnccl.so.2"};
  std::string missing = library.why_missing("NCCL");
  decltype(&ncclGetVersion) version = library.require("ncclGetVersion");
  decltype(&ncclGetErrorString) error_string = library.require("ncclGetErrorString");
  decltype(&ncclGetLastError) last_error = library.require("ncclGetLastError");
  decltype(&ncclGetUniqueId) unique_id = library.require("ncclGetUniqueId");
  decltype(&ncclCommInitRank) init = library.require("ncclCommInitRank");
  decltype(&ncclCommDestroy) destroy = library.require("ncclCommDestroy");
  decltype(&ncclCommAbort) abort = library.require("ncclCommAbort");
  decltype(&ncclCommGetAsyncError) async_error = library.require("ncclCommGetAsyncError");
  decltype(&ncclGroupStart) group_start = library.require("ncclGroupStart");
  decltype(&ncclGroupEnd) group_end = library.require("ncclGroupEnd");
  decltype(&ncclSend) send = library.require("ncclSend");
  decltype(&ncclRecv) recv = library.require("ncclRecv");
  decltype(&ncclAllGather) all_gather = library.require("ncclAllGather");
  decltype(&ncclBroadcast) broadcast = library.require("ncclBroadcast");
  // Null before NCCL 2.19.
  decltype(&ncclCommRegister) register_buffer = library.find("ncclCommRegister");
  decltype(&ncclCommDeregister) deregister_buffer = library.find("ncclCommDeregister");
};

const NcclFunctions& nccl();

}  // namespace longnet
