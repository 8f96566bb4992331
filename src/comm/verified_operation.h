// One operation between ranks whose data the receivers know: verifies an operation before it is
// timed.
//
// Byte i that rank 2 sends to rank 3 is a function of (2, 3, i). On rank 3 a changed byte throws:
//   "all_gather of 4096 bytes on 4 ranks (mpi): rank 3 got 0x1c in byte 17 of rank 2's 1024,
//    expected 0x2d: ..."
#pragma once
#include "comm/comm_operations.h"

namespace longnet {

// Collective over the ranks. Overwrites the operations' buffers; throws Error on the rank where the
// first wrong byte arrived. `bytes` as for CommOperations::run.
void verify(CommOperations& operations, CommOperation what, int64_t bytes);

}  // namespace longnet
