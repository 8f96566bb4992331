// Messages between ranks, independent of kernels and schedules.
//
// Non-blocking operations return a request; buffers belong to the communicator until it has
// completed. Messages between two ranks arrive in the order in which they were sent. What has moved
// is counted, so that a run can be compared with its prediction.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/rank_group.h"

namespace longnet {

// A message between this rank and a peer, whose bytes are in host memory or in a GPU's.
struct Transfer {
  enum class Kind { kSend, kRecv } kind;
  Rank peer;
  std::byte* data;
  int64_t bytes;
};
using Transfers = std::vector<Transfer>;
inline Transfer message_to(Rank peer, std::span<const std::byte> data) {
  return {Transfer::Kind::kSend, peer, const_cast<std::byte*>(data.data()), int64_t(data.size())};
}
inline Transfer message_from(Rank peer, std::span<std::byte> into) {
  return {Transfer::Kind::kRecv, peer, into.data(), int64_t(into.size())};
}

// A transport counts a message when it has moved it: of a send, when the transport is done with its
// bytes. What a library's own collectives move (MPI_Iallgatherv, ncclAllGather) cannot be seen: it
// is taken as the messages that must be delivered at least.
struct CommCounters {
  int64_t bytes_sent = 0, messages_sent = 0;  // messages: non-empty ones
  int64_t bytes_received = 0, messages_received = 0;
  int64_t modelled_bytes_sent = 0, modelled_messages_sent = 0;  // part of those above
  bool operator==(const CommCounters&) const = default;
  void sent(int64_t bytes) {
    bytes_sent += bytes;
    if (bytes > 0) ++messages_sent;
  }
  void received(int64_t bytes) {
    bytes_received += bytes;
    if (bytes > 0) ++messages_received;
  }
  void moved(const Transfer& t) {
    t.kind == Transfer::Kind::kSend ? sent(t.bytes) : received(t.bytes);
  }
  void modelled(std::span<const Transfer> transfers);
};

// Part i of a buffer whose parts have these sizes.
template <class Bytes>
Bytes part_of(Bytes all, std::span<const int64_t> counts, int i) {
  const int64_t begin = std::accumulate(counts.begin(), counts.begin() + i, int64_t{0});
  return all.subspan(size_t(begin), size_t(counts[size_t(i)]));
}
// A rank's messages of an all-gather or an all-to-all (see Communicator), in place of what `out`
// holds: without empty ones, and each rank begins with another peer. Throw Error unless `rank` is a
// member and each member has a count.
void list_all_gather(const RankGroup& group, Rank rank, std::span<std::byte> into,
                     std::span<const int64_t> counts, Transfers& out);
void list_all_to_all(const RankGroup& group, Rank rank, std::span<const std::byte> from,
                     std::span<const int64_t> from_counts, std::span<std::byte> into,
                     std::span<const int64_t> into_counts, Transfers& out);

class Communicator {
 public:
  using Request = int;

  virtual ~Communicator() = default;
  virtual Rank rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view transport() const = 0;  // see host_transport.h

  // ---- the timed path: allocates nothing once warm ----
  // One request for several messages.
  virtual Request post(std::span<const Transfer> transfers) = 0;
  Request isend(Rank to, std::span<const std::byte> data) { return post_one(message_to(to, data)); }
  Request irecv(Rank from, std::span<std::byte> into) { return post_one(message_from(from, into)); }
  // Each member's part of `into` arrives on every member: in place, part i (counts[i] bytes) is
  // member i's, and the own part is there already. A member sends its part to each other member:
  // group size - 1 messages. Groups of collectives must have been opened.
  virtual Request iall_gather(const RankGroup& group, std::span<std::byte> into,
                              std::span<const int64_t> counts);
  // Part i of `from` (from_counts[i] bytes) goes to member i; part i of `into` comes from member i.
  virtual Request iall_to_all(const RankGroup& group, std::span<const std::byte> from,
                              std::span<const int64_t> from_counts, std::span<std::byte> into,
                              std::span<const int64_t> into_counts);
  // True once: the request is over and its number free again.
  virtual bool test(Request request) = 0;
  virtual void wait(Request request) = 0;
  // Called before buffers of requests in flight are freed (a rank that failed): returns when none
  // reads them any more; the other ranks will fail too.
  virtual void abandon() = 0;
  // Throws when another rank is known to have failed; ranks that are processes are ended by their
  // launcher instead. For callers that wait for something else than this communicator.
  virtual void throw_if_broken() const {}
  virtual void barrier() = 0;

  // ---- outside of timed regions ----
  // A barrier for long waits: sleeps instead of spinning, so that idle ranks leave the cores to the
  // busy ones.
  virtual void resting_barrier() = 0;
  // Prepares gathers in a group (a sub-communicator); called by all its members, in the same order.
  virtual void open_group(const RankGroup& group) = 0;
  virtual void all_max(std::span<double> values) = 0;
  virtual void all_sum(std::span<double> values) = 0;
  virtual void broadcast(std::span<std::byte> data, Rank root) = 0;
  // The texts of all ranks, in rank order, on every rank.
  virtual std::vector<std::string> all_texts(const std::string& mine) = 0;
  // The first `count` ranks; null on the others. Called by all ranks.
  virtual std::unique_ptr<Communicator> first_ranks(int count) = 0;
  // Ends every rank's work as soon as possible: called when a rank fails and the others would wait
  // for ever.
  virtual void abort(const std::string& reason) = 0;

  const CommCounters& counters() const { return counters_; }
  void reset_counters() { counters_ = {}; }

  double max_of(double value) {
    all_max({&value, 1});
    return value;
  }
  double sum_of(double value) {
    all_sum({&value, 1});
    return value;
  }
  bool broadcast_flag(bool flag, Rank root = 0) {
    auto byte = std::byte(flag);
    broadcast({&byte, 1}, root);
    return byte != std::byte{0};
  }

 protected:
  CommCounters counters_;
  Transfers collective_;  // messages of the last one; keeps its capacity

 private:
  Request post_one(const Transfer& transfer) { return post({&transfer, 1}); }
};

// Returns the name of this rank's machine, which tells ranks which of them share one.
std::string host_name();

}  // namespace longnet
