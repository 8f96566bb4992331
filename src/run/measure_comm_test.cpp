// Sizes, rates and refusals of the benchmark of transports.
#include "run/measure_comm.h"

#include <gmock/gmock.h>

#include "comm/threads/thread_world.h"
#include "core/check.h"

namespace longnet {
namespace {

using ::testing::HasSubstr;

// Operations that take the device's seconds: size / 4 us a run of 3 operations.
class TimedOperations final : public CommOperations {
 public:
  explicit TimedOperations(Communicator& comm) : host_(make_host_operations(comm, 1024)) {}
  std::string_view transport() const override { return "timed"; }
  Communicator& host() const override { return host_->host(); }
  void run(CommOperation what, int64_t bytes, int repeats) override {
    host_->run(what, bytes, repeats);
    seconds_ = double(bytes) / 4e6 * repeats / 3 / (1 + host().rank());  // rank 0's is the longest
  }
  std::optional<double> device_seconds() const override { return seconds_; }
  int repeats_of(int64_t) const override { return 3; }
  void write(Buffer at, std::span<const std::byte> bytes) override { host_->write(at, bytes); }
  void read(Buffer at, std::span<std::byte> bytes) override {
    host_->read(at, bytes);
    if (breaks) bytes[0] ^= std::byte{1};
  }
  bool breaks = false;

 private:
  void transfer(int64_t, bool, bool) override {}
  void all_gather(int64_t) override {}
  void all_to_all(int64_t) override {}
  std::unique_ptr<CommOperations> host_;
  double seconds_ = 0;
};

constexpr SampleOptions kTwoSamples{.warmup = 0, .min_samples = 2, .max_samples = 2};

TEST(MeasureComm, EverySizeOfEveryOperationHasItsRates) {
  std::vector<CommRow> rows;
  std::vector<std::string> begun;
  run_on_threads(3, [&](Communicator& comm) {
    TimedOperations operations(comm);
    CommHooks hooks;
    if (comm.rank() == 0) hooks.begin = [&](const std::string& what) { begun.push_back(what); };
    const auto own = measure_comm(operations, 50, hooks, kTwoSamples);
    if (comm.rank() == 0) rows = own;
  });
  std::string sizes;
  for (const CommRow& r : rows) {
    const bool pair = is_point_to_point(r.operation);
    sizes += concat(to_string(r.operation), " ", r.bytes, "; ");
    EXPECT_EQ(r.repeats, r.operation == CommOperation::kSendRecv ? 6 : 3);
    EXPECT_DOUBLE_EQ(r.seconds(), double(r.bytes) / 4e6 / r.repeats);
    EXPECT_DOUBLE_EQ(r.algorithm_bytes_per_s(), 4e6 * r.repeats);
    EXPECT_DOUBLE_EQ(r.bus_bytes_per_s(), r.algorithm_bytes_per_s() * (pair ? 1 : 2.0 / 3));
  }
  EXPECT_EQ(sizes,
            "send_recv 4; send_recv 16; exchange 4; exchange 16; all_gather 12; all_gather 48; "
            "all_to_all 12; all_to_all 48; ");
  ASSERT_EQ(begun.size(), rows.size());
  EXPECT_EQ(begun[5], "all_gather of 48 bytes");
}

TEST(MeasureComm, TheHostsClockTimesTransportsWithoutOne) {
  run_on_threads(2, [](Communicator& comm) {
    const auto operations = make_host_operations(comm, 8);
    for (const CommRow& r : measure_comm(*operations, 8, {}, kTwoSamples))
      EXPECT_GT(r.seconds(), 0) << to_string(r.operation);
  });
}

TEST(MeasureComm, WrongDataAreNotTimed) {
  const auto broken = [](Communicator& comm) {
    TimedOperations operations(comm);
    operations.breaks = true;
    measure_comm(operations, 16, {}, kTwoSamples);
  };
  try {
    run_on_threads(2, broken);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("send_recv of 4 bytes on 2 ranks"));
  }
}

TEST(MeasureComm, AsJsonTimesAreOfOneOperation) {
  CommRow row{.operation = CommOperation::kAllGather, .bytes = 800, .repeats = 4, .bus = 0.5};
  EXPECT_EQ(to_json(row).text("reason"), "no sample within the time budget");
  row.samples = {.samples_s = {8}, .own_s = {}, .interval = {.low = 8, .high = 8, .median = 8}};
  EXPECT_EQ(to_json(row).real("median_s"), 2);
  EXPECT_EQ(to_json(row).real("bus_bytes_per_s"), 200);
  EXPECT_EQ(dump_json(*to_json(row).find("ci_low_s")), "null");
  row.samples = {
      .samples_s = {8, 12}, .own_s = {}, .interval = {.low = 8, .high = 12, .median = 10}};
  EXPECT_EQ(to_json(row).real("ci_low_s"), 2);
  EXPECT_EQ(to_json(row).real("ci_high_s"), 3);
}

TEST(MeasureComm, RoomIsForAPartOfEachRankAndFourBuffers) {
  EXPECT_EQ(why_no_room(16, 4, 4, 256), "");
  EXPECT_THAT(why_no_room(15, 4, 4, 256), HasSubstr("use 16 or more"));
  EXPECT_THAT(why_no_room(17, 4, 4, 256), HasSubstr("hint: --max-bytes 16"));
  EXPECT_EQ(why_no_room(17, 4, 2, 256), "");  // the others are elsewhere
}

}  // namespace
}  // namespace longnet
