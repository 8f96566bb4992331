#include "comm/verified_operation.h"

#include <iomanip>
#include <sstream>
#include <vector>

#include "core/check.h"

namespace longnet {
namespace {

constexpr Rank kEverybody = 0;  // stands for the receiver of a gather's parts

// Neighbouring bytes, blocks of 256 bytes, of 64 KiB and of 16 MiB, senders and receivers all
// differ.
std::byte known_byte(Rank from, Rank to, size_t i) {
  return std::byte((size_t(from) * 131 + size_t(to) * 31 + i * 7 + (i >> 8) * 13 + (i >> 16) * 29 +
                    (i >> 24) * 37) &
                   0xFF);
}

void fill(std::span<std::byte> data, Rank from, Rank to) {
  for (size_t i = 0; i < data.size(); ++i) data[i] = known_byte(from, to, i);
}

// Sets every byte to a wrong value, so that bytes that never arrive are found.
void spoil(std::span<std::byte> data, Rank from, Rank to) {
  for (size_t i = 0; i < data.size(); ++i) data[i] = ~known_byte(from, to, i);
}

std::string hex(std::byte value) {
  std::ostringstream out;
  out << "0x" << std::hex << std::setw(2) << std::setfill('0') << int(value);
  return out.str();
}

void require(const CommOperations& operations, CommOperation what, size_t bytes,
             std::span<const std::byte> data, Rank from, Rank to) {
  const Communicator& comm = operations.host();
  for (size_t i = 0; i < data.size(); ++i) {
    const std::byte expected = known_byte(from, to, i);
    if (data[i] == expected) continue;
    check(false, "", to_string(what), " of ", bytes, " bytes on ", comm.size(), " ranks (",
          operations.transport(), "): rank ", comm.rank(), " got ", hex(data[i]), " in byte ", i,
          " of rank ", from, "'s ", data.size(), ", expected ", hex(expected),
          ": the transport delivers wrong data, its times mean nothing; try other transport "
          "settings to find the part that breaks it (mpirun --mca btl self,tcp; "
          "NCCL_P2P_DISABLE=1)");
  }
}

// The peers of one rank in an operation, part by part.
struct Plan {
  std::vector<Rank> to, from;  // of the parts of the source, and of the target
};

Plan plan_of(CommOperation what, const Communicator& comm) {
  if (is_point_to_point(what))
    return comm.rank() > 1 ? Plan{} : Plan{{1 - comm.rank()}, {1 - comm.rank()}};
  Plan plan;
  for (Rank r = 0; r < comm.size(); ++r) {
    if (what == CommOperation::kAllToAll) plan.to.push_back(r);
    plan.from.push_back(r);
  }
  return plan;
}

// Calls visit(the rank, its part of `data`).
template <class Visit>
void for_each_part(const std::vector<Rank>& ranks, std::span<std::byte> data, const Visit& visit) {
  const size_t part = ranks.empty() ? 0 : data.size() / ranks.size();
  for (size_t i = 0; i < ranks.size(); ++i) visit(ranks[i], data.subspan(i * part, part));
}

}  // namespace

void verify(CommOperations& operations, CommOperation what, int64_t bytes) {
  const Communicator& comm = operations.host();
  check(is_point_to_point(what) || bytes % comm.size() == 0, "unequal parts: ", to_string(what),
        " of ", bytes, " bytes on ", comm.size(), " ranks");
  const Rank me = comm.rank();
  const bool gather = what == CommOperation::kAllGather;
  const Rank receiver = gather ? kEverybody : me;
  const Plan plan = plan_of(what, comm);
  std::vector<std::byte> data(static_cast<size_t>(bytes));
  for_each_part(plan.to, data, [&](Rank to, std::span<std::byte> part) { fill(part, me, to); });
  operations.write(CommOperations::Buffer::kSource, data);
  for_each_part(plan.from, data, [&](Rank from, std::span<std::byte> part) {
    if (gather && from == me)
      fill(part, from, receiver);
    else
      spoil(part, from, receiver);
  });
  operations.write(CommOperations::Buffer::kTarget, data);
  operations.stream_barrier();
  operations.run(what, bytes, 1);
  operations.read(CommOperations::Buffer::kTarget, data);
  for_each_part(plan.from, data, [&](Rank from, std::span<std::byte> part) {
    require(operations, what, data.size(), part, from, receiver);
  });
}

}  // namespace longnet
