// One operation of a communicator whose data the receivers know: what is timed is shown to be right
// first.
//
// Byte i that rank 2 sends to rank 3 is a function of (2, 3, i). On rank 3 a changed byte throws:
//   "all_gather of 4096 bytes on 4 ranks (mpi): rank 3 got 0x1c in byte 17 of rank 2's 1024,
//    expected 0x2d: ..."
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/communicator.h"

namespace longnet {

// All of these are collective over the ranks of `comm`, overwrite their buffers, and throw Error on
// the rank where the first wrong byte arrived.

// Rank 0 sends `out` to rank 1, which sends its own back; `in` is as long as `out`. Other ranks do
// nothing.
void verify_send_recv(Communicator& comm, std::span<std::byte> out, std::span<std::byte> in);

// counts: bytes per member, which are all ranks of an open group; their sum is all.size().
void verify_all_gather(Communicator& comm, const RankGroup& group, std::span<std::byte> all,
                       std::span<const int64_t> counts);

// counts: bytes to and from each member of an open group, the same on all ranks and symmetric.
void verify_all_to_all(Communicator& comm, const RankGroup& group, std::span<std::byte> out,
                       std::span<std::byte> in, std::span<const int64_t> counts);

}  // namespace longnet
