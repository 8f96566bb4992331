// Whole operations between ranks, over buffers of their own: `lnbench comm` verifies and times
// them, between hosts and between GPUs alike.
//
//   const auto ops = make_host_operations(comm, 1 << 20);
//   verify(*ops, CommOperation::kAllGather, 4096);     // once, on data that the receivers know
//   ops->run(CommOperation::kAllGather, 4096, 10);     // ten gathers of 4096 bytes, on every rank
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "comm/communicator.h"
#include "core/enum_names.h"

namespace longnet {

enum class CommOperation {
  kSendRecv,   // rank 0's source to rank 1's target, and rank 1's back; the others do nothing
  kExchange,   // the same, both directions at once
  kAllGather,  // in place in the target: part i is rank i's
  kAllToAll    // part i of the source goes to rank i, part i of the target comes from it
};
constexpr auto texts_of(CommOperation) {
  return texts("send_recv", "exchange", "all_gather", "all_to_all");
}
inline constexpr auto kCommOperations = enum_values<CommOperation>();
// True for operations that take part on ranks 0 and 1 alone.
inline bool is_point_to_point(CommOperation what) {
  return what == CommOperation::kSendRecv || what == CommOperation::kExchange;
}

// One rank's side. All of run() is collective.
class CommOperations {
 public:
  enum class Buffer { kSource, kTarget };
  virtual ~CommOperations() = default;
  virtual std::string_view transport() const = 0;
  virtual Communicator& host() const = 0;
  // `bytes`: of a message; else of a whole buffer, in equal parts. At most what the factory was
  // told. Returns when `repeats` operations are over on this rank.
  virtual void run(CommOperation what, int64_t bytes, int repeats);
  // Duration of the last run by this rank's device; none where the host's clock times it.
  virtual std::optional<double> device_seconds() const { return std::nullopt; }
  // A barrier before a run, so that ranks start together; not timed.
  virtual void stream_barrier() { host().barrier(); }
  // Number of operations in a timed run: one short operation takes less time than starting it.
  virtual int repeats_of(int64_t bytes) const = 0;

  virtual void write(Buffer at, std::span<const std::byte> bytes) = 0;
  virtual void read(Buffer at, std::span<std::byte> bytes) = 0;

 private:
  // Among ranks 0 and 1: a message to the other one, one from it, or both at once.
  virtual void transfer(int64_t bytes, bool sends, bool receives) = 0;
  virtual void all_gather(int64_t part_bytes) = 0;
  virtual void all_to_all(int64_t part_bytes) = 0;
};

// `comm` outlives them. Collective.
std::unique_ptr<CommOperations> make_host_operations(Communicator& comm, int64_t max_bytes);

class DeviceTransport;  // comm/cuda/device_transport.h
// Between GPUs. Buffers are on the calling thread's device, which is its rank's (device_of_rank). A
// run's seconds are the device's, from before the first operation to after the last; operations
// follow each other on one stream, as they do in nccl-tests. Collective. Throws DeviceOutOfMemory.
std::unique_ptr<CommOperations> make_device_operations(std::unique_ptr<DeviceTransport> transport,
                                                       int64_t max_bytes);

// One operation whose data the receivers know. Byte i that rank 2 sends to rank 3 is a function of
// (2, 3, i). On rank 3 a changed byte throws:
//   "all_gather of 4096 bytes on 4 ranks (mpi): rank 3 got 0x1c in byte 17 of rank 2's 1024,
//    expected 0x2d: ..."
// Collective. Overwrites the operations' buffers; throws Error on the rank where the first wrong
// byte arrived. `bytes` as for CommOperations::run.
void verify(CommOperations& operations, CommOperation what, int64_t bytes);

}  // namespace longnet
