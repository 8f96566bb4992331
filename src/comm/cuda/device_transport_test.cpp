// Transports between GPUs on emulated devices, without kernels or schedules: what arrives, what is
// counted, who is chosen. Emulated work is done as late as it may be, so that a missing dependency
// leaves old values.
#include "comm/cuda/device_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/threads/thread_world.h"
#include "core/check.h"
#include "emulation/emulated_device.h"

namespace longnet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Ranks as threads, each with a device of its own as NCCL wants it, and a transport.
void with_transport(const std::string& name, int ranks,
                    const std::function<void(DeviceTransport&, const Stream&)>& body) {
  SCOPED_TRACE(name);
  emulate_devices(ranks);
  run_on_threads(ranks, [&](Communicator& comm) {
    use_device(device_of_rank(comm));
    const auto transport = make_device_transport(name, comm);
    const Stream stream;
    body(*transport, stream);
    transport->close();
    comm.barrier();
  });
  emulate_devices(1);
}

std::vector<std::string> usable_transports() {
  std::vector<std::string> names = device_transport_names();
  if (!why_nccl_absent().empty())
    std::erase_if(names, [](const std::string& name) { return needs_gpu_per_rank(name); });
  return names;
}

std::vector<int> values_of(const DeviceBuffer& buffer, const Stream& stream) {
  std::vector<std::byte> bytes(size_t(buffer.size()));
  stream.copy(bytes.data(), buffer.data(), buffer.size());
  stream.synchronize();
  std::vector<int> values;
  for (const std::byte b : bytes) values.push_back(int(b));
  return values;
}

// To the right neighbour: 2 bytes of 10 + rank, then 1 byte of 20 + rank; twice, the second time
// 100 more. The second ticket completes the first one too.
TEST(DeviceTransportTest, MessagesArriveInTheirOrderAndAreCounted) {
  for (const std::string& name : usable_transports())
    with_transport(name, 3, [](DeviceTransport& transport, const Stream& stream) {
      const Rank rank = transport.host().rank(), right = (rank + 1) % 3, left = (rank + 2) % 3;
      MemoryLedger ledger;
      const DeviceBuffer mine(ledger, "mine", 3), theirs(ledger, "theirs", 3);
      transport.open(std::vector{mine.bytes(), theirs.bytes()});
      for (const int more : {0, 100}) {
        stream.fill(mine.data(), 10 + rank + more, 2);
        stream.fill(mine.data() + 2, 20 + rank + more, 1);
        DeviceTransport::Ticket last = -1;
        for (const auto& [begin, count] : {std::pair<size_t, size_t>{0, 2}, {2, 1}}) {
          const Transfers both{message_to(right, mine.bytes().subspan(begin, count)),
                               message_from(left, theirs.bytes().subspan(begin, count))};
          const DeviceTransport::Ticket ticket = transport.post(both, stream);
          EXPECT_EQ(ticket, last + 1) << "tickets begin anew with each run";
          last = ticket;
        }
        transport.complete(last, stream);
        const int first = 10 + left + more;
        EXPECT_THAT(values_of(theirs, stream), ElementsAre(first, first, first + 10));
        transport.finish();
        transport.host().barrier();
      }
      const CommCounters& moved = transport.counters();
      EXPECT_EQ(moved.bytes_sent, 2 * 3);
      EXPECT_EQ(moved.bytes_received, 2 * 3);
      EXPECT_EQ(moved.messages_sent, 2 * 2);
      EXPECT_EQ(moved.messages_received, 2 * 2);
      EXPECT_EQ(moved.modelled_bytes_sent, 0);
    });
}

// Parts of 2, 0 and 1 bytes, and a post without any transfer, which is over at once.
TEST(DeviceTransportTest, GathersPartsOfUnequalSizesInPlace) {
  for (const std::string& name : usable_transports())
    with_transport(name, 3, [](DeviceTransport& transport, const Stream& stream) {
      const Rank rank = transport.host().rank();
      const RankGroup all{.count = 3};
      const std::vector<int64_t> counts{2, 0, 1};
      MemoryLedger ledger;
      const DeviceBuffer into(ledger, "into", 3);
      transport.open(std::vector{into.bytes()});
      transport.open_group(all);
      const std::span<std::byte> own = part_of(into.bytes(), counts, rank);
      stream.fill(own.data(), 7 + rank, std::ssize(own));
      const auto empty = transport.post({}, stream);
      const auto gather = transport.post_gather({all, into.bytes(), counts}, stream);
      transport.complete(empty, stream);
      transport.complete(gather, stream);
      EXPECT_THAT(values_of(into, stream), ElementsAre(7, 7, 9));
      EXPECT_EQ(transport.counters().bytes_sent, 2 * counts[size_t(rank)]);
      EXPECT_EQ(transport.counters().bytes_received, 3 - counts[size_t(rank)]);
      transport.finish();
    });
}

TEST(DeviceTransportTest, RanksTakeTheirMachinesDevicesInTurn) {
  emulate_devices(2);
  run_on_threads(3, [](Communicator& comm) {
    EXPECT_EQ(device_of_rank(comm), comm.rank() % 2);
    use_device(device_of_rank(comm));
    const DevicesInUse used = devices_in_use(comm);
    EXPECT_EQ(used.devices, 2);
    EXPECT_EQ(used.ranks_on_mine, comm.rank() == 1 ? 1 : 2);
  });
  emulate_devices(1);
}

TEST(DeviceTransportTest, AutoIsWhatTheDevicesAllow) {
  const bool has_nccl = why_nccl_absent().empty();
  for (const auto& [ranks, devices] : {std::pair{1, 1}, {2, 1}, {2, 2}}) {
    emulate_devices(devices);
    run_on_threads(ranks, [&, ranks = ranks, devices = devices](Communicator& comm) {
      use_device(device_of_rank(comm));
      const bool own = ranks > 1 && ranks == devices;
      EXPECT_EQ(resolve_device_transport("auto", comm), own && has_nccl ? "nccl" : "cuda_ipc");
      EXPECT_EQ(make_device_transport("mpi_host", comm)->name(), "mpi_host");
      EXPECT_THROW(make_device_transport("nvlink", comm), UsageError);
      if (ranks > devices) {
        EXPECT_THROW(make_device_transport("nccl", comm), UsageError);
      }
      comm.barrier();
    });
  }
  emulate_devices(1);
}

// Rank 1 fails, and rank 0 waits for work that needs it: it learns of that before the device's own
// patience ends, 20 s later.
TEST(DeviceTransportTest, AWaitEndsWhenAnotherRankHasFailed) {
  emulate_devices(1);
  const auto rank_main = [](Communicator& comm) {
    const auto transport = make_device_transport("mpi_host", comm);
    check(comm.rank() == 0, "no message will come");
    const Stream stream;
    emulate_launch(stream.handle(), [] { throw NotYet("a message is missing"); });
    Event end;
    end.record(stream);
    try {
      transport->wait_for(end);
      ADD_FAILURE() << "the event is not over";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), Not(HasSubstr("a message is missing")));
    }
  };
  EXPECT_THROW(run_on_threads(2, rank_main), Error);
}

}  // namespace
}  // namespace longnet
