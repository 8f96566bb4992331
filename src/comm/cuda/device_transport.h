// Messages between ranks whose buffers are in GPU memory, independent of kernels and schedules.
//
//   nccl              one GPU per rank; NCCL's own paths between them
//   nccl_registered   the same with registered buffers, which NCCL may use in place
//   cuda_ipc          ranks of one machine that share a GPU (or a few): copies by the receiver,
//                     ordered by events; ranks are threads of one process, or processes that open
//                     each other's memory
//   mpi_host          through page-locked host memory and the host communicator: always works
//
// Transfers that one post() names may run at the same time. Between two ranks they match in order.
//
//   ring, rank 1 of 4: post({send kv to 2, recv A from 0}, comm);  ...  complete(ticket, compute)
#pragma once
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "comm/communicator.h"
#include "core/cuda/device.h"
#include "core/transports.h"

namespace longnet {

class DeviceTransport {
 public:
  using Ticket = int;
  virtual ~DeviceTransport() = default;
  DeviceTransportKind kind() const { return kind_; }
  std::string_view name() const { return to_string(kind_); }
  // True when transfers are kernels, which need multiprocessors beside those that compute.
  virtual bool takes_multiprocessors() const { return false; }

  // Buffers that transfers will touch; called once, by all ranks.
  virtual void open(std::span<const std::span<std::byte>> buffers) = 0;
  // Prepares gathers in a group; called by all its members, in the same order.
  virtual void open_group(const RankGroup& group) = 0;
  // Starts transfers; they see what was enqueued on `stream` before, and `stream` may be blocked
  // until they are done.
  Ticket post(std::span<const Transfer> transfers, const Stream& stream);
  // In-place gather: part i of `into` (counts[i] bytes) is member i's; the own part is set.
  struct Gather {
    const RankGroup& group;
    std::span<std::byte> into;
    std::span<const int64_t> counts;
  };
  Ticket post_gather(const Gather& gather, const Stream& stream);
  // Work that is enqueued on `waiting` from now on sees the transfers done, and all those that were
  // posted before. May block the calling thread until the peers have come as far.
  void complete(Ticket ticket, const Stream& waiting);
  // A barrier on the device, if transfers can make one: later work on `stream` begins when all
  // ranks have reached it. (A barrier of the host lets ranks go one after another.) Not counted.
  virtual void stream_barrier(const Stream&) {}
  // After a run, when all is complete: waits until peers have read everything, drops all tickets.
  virtual void finish() { used_posts_ = arrived_ = 0; }
  // Collective, after the last run and before buffers are freed: closes what peers have opened.
  virtual void close() {}
  // Called while a thread waits for transfers: throws when they will never end.
  virtual void check_health() const {}
  // Ends all transfers, so that streams become idle; nothing else works afterwards.
  virtual void abort() noexcept {}
  // Returns when `event` is over; throws, with all transfers aborted, when they will never end.
  void wait_for(const Event& event);

  const CommCounters& counters() const { return counters_; }
  void reset_counters() { counters_ = {}; }
  Communicator& host() const { return host_; }

 protected:
  // The transfers of one ticket; used again, with their event, in the next run.
  struct Post {
    Ticket ticket;
    Transfers transfers{};
    Event over{};
    bool is_over = false;  // the event has been recorded
    void end_on(const Stream& stream) {
      over.record(stream);
      is_over = true;
    }
  };
  DeviceTransport(DeviceTransportKind kind, Communicator& host) : kind_(kind), host_(host) {}
  CommCounters counters_;

 private:
  // Starts the transfers of a post (at least one), and ends it where that needs no help of the
  // host.
  virtual void start(Post& post, const Stream& stream) = 0;
  virtual void start_gather(Post& post, const Gather&, const Stream& stream) {
    start(post, stream);
  }
  // Receives what arrives and ends the post; called once, where `start` has not ended it.
  virtual void arrive(Post&) {}
  Post& next_post();

  DeviceTransportKind kind_;
  Communicator& host_;
  std::deque<Post> posts_;
  int used_posts_ = 0;
  Ticket arrived_ = 0;  // posts before it are over, so that transfers match in order
};

// The device of a rank: ranks of a machine take its devices round robin. Collective.
int device_of_rank(Communicator& host);

// Number of devices that the ranks' threads are on. Collective.
struct DevicesInUse {
  int devices = 1;        // on all machines
  int ranks_on_mine = 1;  // ranks that share the calling thread's device
};
DevicesInUse devices_in_use(Communicator& host);

// `name`: a DeviceTransportKind's. Collective; the calling thread's device is its rank's. Throws
// UsageError when the machine does not fit, with the way out.
std::unique_ptr<DeviceTransport> make_device_transport(std::string_view name, Communicator& host);
// The transport that "auto" is for these ranks; other names stay. Collective, likewise.
std::string resolve_device_transport(std::string_view name, Communicator& host);

// Empty when the library is there and fits the headers of the build, else why not.
std::string why_nccl_absent();
// "2.28.9 (headers 2.28.9)", or why not.
std::string describe_nccl();
// kNccl or kNcclRegistered.
std::unique_ptr<DeviceTransport> make_nccl_transport(DeviceTransportKind kind, Communicator& host);
std::unique_ptr<DeviceTransport> make_ipc_transport(Communicator& host);
std::unique_ptr<DeviceTransport> make_staged_transport(Communicator& host);

}  // namespace longnet
