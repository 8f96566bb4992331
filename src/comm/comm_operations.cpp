#include "comm/comm_operations.h"

#include <algorithm>
#include <iomanip>
#include <numeric>
#include <sstream>
#include <vector>

#include "core/check.h"

namespace longnet {
namespace {

class HostOperations final : public CommOperations {
 public:
  HostOperations(Communicator& comm, int64_t max_bytes)
      : comm_(comm),
        all_{.first = 0, .stride = 1, .count = comm.size()},
        source_(size_t(max_bytes)),
        target_(size_t(max_bytes)),
        counts_(size_t(comm.size())) {
    comm_.open_group(all_);
  }
  std::string_view transport() const override { return comm_.transport(); }
  Communicator& host() const override { return comm_; }

  int repeats_of(int64_t bytes) const override {
    return bytes < 65536 ? 50 : bytes < 1 << 20 ? 4 : 1;
  }

  void write(Buffer at, std::span<const std::byte> bytes) override {
    std::copy(bytes.begin(), bytes.end(), buffer(at).begin());
  }
  void read(Buffer at, std::span<std::byte> bytes) override {
    std::copy_n(buffer(at).begin(), bytes.size(), bytes.begin());
  }

 private:
  std::vector<std::byte>& buffer(Buffer at) { return at == Buffer::kSource ? source_ : target_; }

  void transfer(int64_t bytes, bool sends, bool receives) override {
    constexpr Communicator::Request kNone = -1;
    const Rank other = 1 - comm_.rank();
    const auto arrives = receives ? comm_.irecv(other, {target_.data(), size_t(bytes)}) : kNone;
    const auto leaves = sends ? comm_.isend(other, {source_.data(), size_t(bytes)}) : kNone;
    for (const auto request : {arrives, leaves})
      if (request != kNone) comm_.wait(request);
  }
  void all_gather(int64_t part_bytes) override {
    std::fill(counts_.begin(), counts_.end(), part_bytes);
    const size_t whole = size_t(part_bytes) * counts_.size();
    comm_.wait(comm_.iall_gather(all_, {target_.data(), whole}, counts_));
  }
  void all_to_all(int64_t part_bytes) override {
    std::fill(counts_.begin(), counts_.end(), part_bytes);
    const size_t whole = size_t(part_bytes) * counts_.size();
    comm_.wait(comm_.iall_to_all(all_, {source_.data(), whole}, counts_, {target_.data(), whole},
                                 counts_));
  }

  Communicator& comm_;
  RankGroup all_;
  std::vector<std::byte> source_, target_;
  std::vector<int64_t> counts_;
};

constexpr Rank kEverybody = 0;  // stands for the receiver of a gather's parts

// Neighbouring bytes, blocks of 256 bytes, of 64 KiB and of 16 MiB, senders and receivers all
// differ.
std::byte known_byte(Rank from, Rank to, size_t i) {
  return std::byte((size_t(from) * 131 + size_t(to) * 31 + i * 7 + (i >> 8) * 13 + (i >> 16) * 29 +
                    (i >> 24) * 37) &
                   0xFF);
}

// `flipped`: every byte is wrong, so that bytes that never arrive are found.
void fill(std::span<std::byte> data, Rank from, Rank to, bool flipped = false) {
  const std::byte flip{static_cast<unsigned char>(flipped ? 0xFF : 0)};
  for (size_t i = 0; i < data.size(); ++i) data[i] = known_byte(from, to, i) ^ flip;
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

// The ranks that the parts of a rank's buffers go to and come from.
std::vector<Rank> peers_of(CommOperation what, const Communicator& comm) {
  if (is_point_to_point(what) && comm.rank() > 1) return {};
  if (is_point_to_point(what)) return {1 - comm.rank()};
  std::vector<Rank> all(size_t(comm.size()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Calls visit(the rank, its part of `data`).
template <class Visit>
void for_each_part(const std::vector<Rank>& ranks, std::span<std::byte> data, const Visit& visit) {
  const size_t part = ranks.empty() ? 0 : data.size() / ranks.size();
  for (size_t i = 0; i < ranks.size(); ++i) visit(ranks[i], data.subspan(i * part, part));
}

}  // namespace

std::unique_ptr<CommOperations> make_host_operations(Communicator& comm, int64_t max_bytes) {
  return std::make_unique<HostOperations>(comm, max_bytes);
}

void CommOperations::run(CommOperation what, int64_t bytes, int repeats) {
  const Rank me = host().rank();
  if (is_point_to_point(what) && me > 1) return;
  const int64_t part = bytes / host().size();
  for (int i = 0; i < repeats; ++i) switch (what) {
      case CommOperation::kSendRecv:  // there and back
        for (const Rank sender : {0, 1}) transfer(bytes, me == sender, me != sender);
        break;
      case CommOperation::kExchange:
        transfer(bytes, true, true);
        break;
      case CommOperation::kAllGather:
        all_gather(part);
        break;
      case CommOperation::kAllToAll:
        all_to_all(part);
        break;
    }
}

void verify(CommOperations& operations, CommOperation what, int64_t bytes) {
  const Communicator& comm = operations.host();
  check(is_point_to_point(what) || bytes % comm.size() == 0, "unequal parts: ", to_string(what),
        " of ", bytes, " bytes on ", comm.size(), " ranks");
  const Rank me = comm.rank();
  const bool gather = what == CommOperation::kAllGather;
  const Rank receiver = gather ? kEverybody : me;
  const std::vector<Rank> peers = peers_of(what, comm);
  std::vector<std::byte> data(static_cast<size_t>(bytes));
  for_each_part(peers, data, [&](Rank to, std::span<std::byte> part) { fill(part, me, to); });
  operations.write(CommOperations::Buffer::kSource, data);
  for_each_part(peers, data, [&](Rank from, std::span<std::byte> part) {
    fill(part, from, receiver, /*flipped=*/!(gather && from == me));
  });
  operations.write(CommOperations::Buffer::kTarget, data);
  operations.stream_barrier();
  operations.run(what, bytes, 1);
  operations.read(CommOperations::Buffer::kTarget, data);
  for_each_part(peers, data, [&](Rank from, std::span<std::byte> part) {
    require(operations, what, data.size(), part, from, receiver);
  });
}

}  // namespace longnet
