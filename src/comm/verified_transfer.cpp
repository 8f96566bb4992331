#include "comm/verified_transfer.h"

#include <iomanip>
#include <sstream>

#include "core/check.h"

namespace longnet {
namespace {

constexpr Rank kEverybody = 0;  // receiver of what a gather spreads

// Neighbouring bytes, blocks of 256, senders and receivers all differ.
std::byte known_byte(Rank from, Rank to, size_t i) {
  return std::byte((size_t(from) * 131 + size_t(to) * 31 + i * 7 + (i >> 8) * 13) & 0xFF);
}

void fill(std::span<std::byte> data, Rank from, Rank to) {
  for (size_t i = 0; i < data.size(); ++i) data[i] = known_byte(from, to, i);
}

// Every byte wrong, so that what never arrives shows.
void spoil(std::span<std::byte> data, Rank from, Rank to) {
  for (size_t i = 0; i < data.size(); ++i) data[i] = ~known_byte(from, to, i);
}

std::string hex(std::byte value) {
  std::ostringstream out;
  out << "0x" << std::hex << std::setw(2) << std::setfill('0') << int(value);
  return out.str();
}

void require(const Communicator& comm, const char* what, size_t bytes,
             std::span<const std::byte> data, Rank from, Rank to) {
  for (size_t i = 0; i < data.size(); ++i) {
    const std::byte expected = known_byte(from, to, i);
    if (data[i] == expected) continue;
    check(false, what, " of ", bytes, " bytes on ", comm.size(), " ranks (", comm.transport(),
          "): rank ", comm.rank(), " got ", hex(data[i]), " in byte ", i, " of rank ", from, "'s ",
          data.size(), ", expected ", hex(expected),
          ": the transport delivers wrong data, its times mean nothing; try other transport "
          "settings (mpirun --mca btl self,tcp) to find the part that breaks it");
  }
}

// Calls visit(member's rank, its part of `data`).
template <class Visit>
void for_each_part(const RankGroup& group, std::span<std::byte> data,
                   std::span<const int64_t> counts, const Visit& visit) {
  size_t at = 0;
  for (int i = 0; i < group.count; ++i) {
    const auto size = size_t(counts[size_t(i)]);
    visit(group[i], data.subspan(at, size));
    at += size;
  }
  check(at == data.size(), "the members' parts are ", at, " bytes, the buffer ", data.size());
}

}  // namespace

void verify_send_recv(Communicator& comm, std::span<std::byte> out, std::span<std::byte> in) {
  const Rank me = comm.rank(), peer = 1 - me;
  if (me > 1) return;
  fill(out, me, peer);
  spoil(in, peer, me);
  if (me == 0) comm.wait(comm.isend(peer, out));
  comm.wait(comm.irecv(peer, in));
  require(comm, "send_recv", in.size(), in, peer, me);
  if (me == 1) comm.wait(comm.isend(peer, out));
}

void verify_all_gather(Communicator& comm, const RankGroup& group, std::span<std::byte> all,
                       std::span<const int64_t> counts) {
  for_each_part(group, all, counts, [&](Rank from, std::span<std::byte> part) {
    if (from == comm.rank())
      fill(part, from, kEverybody);
    else
      spoil(part, from, kEverybody);
  });
  comm.wait(comm.iall_gather(group, all, counts));
  for_each_part(group, all, counts, [&](Rank from, std::span<std::byte> part) {
    require(comm, "all_gather", all.size(), part, from, kEverybody);
  });
}

void verify_all_to_all(Communicator& comm, const RankGroup& group, std::span<std::byte> out,
                       std::span<std::byte> in, std::span<const int64_t> counts) {
  const Rank me = comm.rank();
  for_each_part(group, out, counts,
                [&](Rank to, std::span<std::byte> part) { fill(part, me, to); });
  for_each_part(group, in, counts,
                [&](Rank from, std::span<std::byte> part) { spoil(part, from, me); });
  comm.wait(comm.iall_to_all(group, out, counts, in, counts));
  for_each_part(group, in, counts, [&](Rank from, std::span<std::byte> part) {
    require(comm, "all_to_all", in.size(), part, from, me);
  });
}

}  // namespace longnet
