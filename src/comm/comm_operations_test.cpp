#include "comm/comm_operations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "comm/threads/thread_world.h"
#include "core/check.h"

namespace longnet {
namespace {

// Forwards everything, but on one rank changes the bytes that have arrived.
class Corrupting final : public Communicator {
 public:
  using Change = std::function<void(std::span<std::byte>)>;
  Corrupting(Communicator& inner, Change change) : inner_(inner), change_(std::move(change)) {}

  Rank rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::string_view transport() const override { return inner_.transport(); }
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
  Request post(std::span<const Transfer> transfers) override {
    for (const Transfer& t : transfers)
      if (t.kind == Transfer::Kind::kRecv) arriving_ = {t.data, size_t(t.bytes)};
    return inner_.post(transfers);
  }

  Communicator& inner_;
  Change change_;
  std::span<std::byte> arriving_;
};

// One operation on 4 ranks of 300 bytes per rank; rank 1 sees `change` applied to what it received.
// Returns the error's text, or "".
std::string error_of(CommOperation operation, const Corrupting::Change& change) {
  constexpr int kRanks = 4, kPart = 300;
  std::string error;
  run_on_threads(kRanks, [&](Communicator& threads) {
    Corrupting comm(
        threads, threads.rank() == 1 ? change : [](std::span<std::byte>) {});
    const auto operations = make_host_operations(comm, kRanks * kPart);
    try {
      verify(*operations, operation, kRanks * kPart);
    } catch (const Error& e) {
      EXPECT_EQ(comm.rank(), 1);
      error = e.what();
    }
    comm.barrier();
  });
  return error;
}

class VerifiedOperation : public testing::TestWithParam<CommOperation> {};

TEST_P(VerifiedOperation, AcceptsDataThatArrivesAsSent) {
  EXPECT_EQ(error_of(GetParam(), [](std::span<std::byte>) {}), "");
}

// Byte 2 * 300 + 17: rank 2's, in collectives.
TEST_P(VerifiedOperation, NamesTheFirstChangedByte) {
  const std::string error =
      error_of(GetParam(), [](std::span<std::byte> data) { data[617] ^= std::byte{1}; });
  EXPECT_THAT(error, testing::HasSubstr(" of 1200 bytes on 4 ranks (threads): rank 1 got 0x"));
  EXPECT_THAT(error, testing::HasSubstr(is_point_to_point(GetParam())
                                            ? "in byte 617 of rank 0's 1200, expected 0x"
                                            : "in byte 17 of rank 2's 300, expected 0x"));
}

TEST_P(VerifiedOperation, FindsShiftedSwappedAndMissingData) {
  const auto swap_parts = [](std::span<std::byte> d) {
    std::swap_ranges(d.begin() + 600, d.begin() + 900, d.begin() + 900);
  };
  const auto shift = [](std::span<std::byte> d) {
    std::rotate(d.begin(), d.begin() + 256, d.end());
  };
  const auto lose_the_end = [](std::span<std::byte> d) { d.back() = ~d.back(); };
  EXPECT_NE(error_of(GetParam(), swap_parts), "");
  EXPECT_NE(error_of(GetParam(), shift), "");
  EXPECT_NE(error_of(GetParam(), lose_the_end), "");
}

INSTANTIATE_TEST_SUITE_P(Operations, VerifiedOperation, testing::ValuesIn(kCommOperations),
                         [](const auto& one) { return std::string(to_string(one.param)); });

TEST(CommOperations, SwappedLargeBlocksAreFound) {
  constexpr size_t kBlock = 65536;
  run_on_threads(2, [](Communicator& threads) {
    Corrupting comm(threads, [&](std::span<std::byte> data) {
      if (threads.rank() == 1)
        std::swap_ranges(data.begin(), data.begin() + kBlock, data.begin() + kBlock);
    });
    const auto operations = make_host_operations(comm, 4 * kBlock);
    if (threads.rank() == 1)
      EXPECT_THROW(verify(*operations, CommOperation::kExchange, 4 * kBlock), Error);
    else
      verify(*operations, CommOperation::kExchange, 4 * kBlock);
  });
}

TEST(CommOperations, RepeatsAndPointToPointLeaveTheOthersAlone) {
  run_on_threads(3, [](Communicator& comm) {
    const auto operations = make_host_operations(comm, 12);
    for (const CommOperation what : kCommOperations) {
      operations->stream_barrier();
      operations->run(what, 12, 5);
      verify(*operations, what, 12);
    }
    EXPECT_EQ(operations->transport(), "threads");
    EXPECT_FALSE(operations->device_seconds());
  });
}

}  // namespace
}  // namespace longnet
