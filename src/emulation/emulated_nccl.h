// For tests: NCCL among threads on emulated devices, in the place of comm/nccl/nccl_functions.cpp.
//
// It is as strict as the library may be:
//   - a group of calls is one kernel: it begins when all before it on its stream is done, and a
//     message moves when the kernels of both its ends have begun;
//   - calls of a communicator match in the order in which each rank made them, and mismatches
//   throw;
//   - ncclGroupEnd waits on the host until the peers that it talks to for the first time connect;
//   - ncclCommInitRank waits on the host until all ranks have called, each from a device of its
//   own.
// A call that waits for itself throws; one whose peer does not arrive throws after 20 s.
#pragma once
#include <cstdint>

namespace longnet {

struct NcclUse {
  int64_t kernels = 0;             // groups, and calls outside of groups
  int64_t calls = 0;               // sends, receives, gathers, broadcasts
  int64_t registered_calls = 0;    // of these, with all their memory registered
  int64_t registered_buffers = 0;  // now
};
// Returns the counts over all ranks since the program began.
NcclUse nccl_use();

// Call number `call` (from 0) of rank `rank` on any communicator fails; -1: none does any more.
void emulate_nccl_failure(int rank, int64_t call);

}  // namespace longnet
