#include "comm/verified_transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "comm/threads/thread_world.h"
#include "core/check.h"

namespace longnet {
namespace {

// Passes everything on, but on one rank changes what has arrived.
class Corrupting final : public Communicator {
 public:
  using Change = std::function<void(std::span<std::byte>)>;
  Corrupting(Communicator& inner, Change change) : inner_(inner), change_(std::move(change)) {}

  Rank rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::string_view transport() const override { return inner_.transport(); }
  Request isend(Rank to, std::span<const std::byte> data) override {
    return inner_.isend(to, data);
  }
  Request irecv(Rank from, std::span<std::byte> into) override {
    arriving_ = into;
    return inner_.irecv(from, into);
  }
  Request iall_gather(const RankGroup& group, std::span<std::byte> into,
                      std::span<const int64_t> counts) override {
    arriving_ = into;
    return inner_.iall_gather(group, into, counts);
  }
  Request iall_to_all(const RankGroup& group, std::span<const std::byte> from,
                      std::span<const int64_t> from_counts, std::span<std::byte> into,
                      std::span<const int64_t> into_counts) override {
    arriving_ = into;
    return inner_.iall_to_all(group, from, from_counts, into, into_counts);
  }
  bool test(Request request) override { return inner_.test(request); }
  void wait(Request request) override {
    inner_.wait(request);
    if (!arriving_.empty()) change_(std::exchange(arriving_, {}));
  }
  void abandon() override { inner_.abandon(); }
  void barrier() override { inner_.barrier(); }
  void resting_barrier() override { inner_.resting_barrier(); }
  void open_group(const RankGroup& group) override { inner_.open_group(group); }
  void all_max(std::span<double> values) override { inner_.all_max(values); }
  void all_sum(std::span<double> values) override { inner_.all_sum(values); }
  void broadcast(std::span<std::byte> data, Rank root) override { inner_.broadcast(data, root); }
  std::vector<std::string> all_texts(const std::string& mine) override {
    return inner_.all_texts(mine);
  }
  std::unique_ptr<Communicator> first_ranks(int count) override {
    return inner_.first_ranks(count);
  }
  void abort(const std::string& reason) override { inner_.abort(reason); }

 private:
  Communicator& inner_;
  Change change_;
  std::span<std::byte> arriving_;
};

enum class Operation { kSendRecv, kAllGather, kAllToAll };

// One operation on 4 ranks of 300 bytes per rank; rank 1 sees `change` applied to what it received.
// Returns what is said about it, or "".
std::string said(Operation operation, const Corrupting::Change& change) {
  constexpr int kRanks = 4, kPart = 300;
  std::string error;
  run_on_threads(kRanks, [&](Communicator& threads) {
    Corrupting comm(
        threads, threads.rank() == 1 ? change : [](std::span<std::byte>) {});
    const RankGroup group{.first = 0, .stride = 1, .count = kRanks};
    comm.open_group(group);
    const std::vector<int64_t> counts(kRanks, kPart);
    std::vector<std::byte> out(kRanks * kPart), in(out.size());
    try {
      if (operation == Operation::kSendRecv) verify_send_recv(comm, out, in);
      if (operation == Operation::kAllGather) verify_all_gather(comm, group, in, counts);
      if (operation == Operation::kAllToAll) verify_all_to_all(comm, group, out, in, counts);
    } catch (const Error& e) {
      EXPECT_EQ(comm.rank(), 1);
      error = e.what();
      // What the others still wait for.
      if (operation == Operation::kSendRecv) comm.wait(comm.isend(0, out));
    }
    comm.barrier();
  });
  return error;
}

class VerifiedTransfer : public testing::TestWithParam<Operation> {};

TEST_P(VerifiedTransfer, AcceptsWhatArrivesAsItWasSent) {
  EXPECT_EQ(said(GetParam(), [](std::span<std::byte>) {}), "");
}

TEST_P(VerifiedTransfer, NamesTheFirstChangedByte) {  // byte 2 * 300 + 17: rank 2's, in collectives
  const std::string error =
      said(GetParam(), [](std::span<std::byte> data) { data[617] ^= std::byte{1}; });
  EXPECT_THAT(error, testing::HasSubstr(" of 1200 bytes on 4 ranks (threads): rank 1 got 0x"));
  EXPECT_THAT(error, testing::HasSubstr(GetParam() == Operation::kSendRecv
                                            ? "in byte 617 of rank 0's 1200, expected 0x"
                                            : "in byte 17 of rank 2's 300, expected 0x"));
}

TEST_P(VerifiedTransfer, SeesShiftedSwappedAndMissingData) {
  const auto swap_parts = [](std::span<std::byte> d) {
    std::swap_ranges(d.begin() + 600, d.begin() + 900, d.begin() + 900);
  };
  const auto shift = [](std::span<std::byte> d) {
    std::rotate(d.begin(), d.begin() + 256, d.end());
  };
  const auto lose_the_end = [](std::span<std::byte> d) { d.back() = ~d.back(); };
  EXPECT_NE(said(GetParam(), swap_parts), "");
  EXPECT_NE(said(GetParam(), shift), "");
  EXPECT_NE(said(GetParam(), lose_the_end), "");
}

INSTANTIATE_TEST_SUITE_P(Operations, VerifiedTransfer,
                         testing::Values(Operation::kSendRecv, Operation::kAllGather,
                                         Operation::kAllToAll));

}  // namespace
}  // namespace longnet
