#include "comm/threads/thread_world.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <latch>
#include <mutex>
#include <system_error>
#include <thread>

#include "comm/host_transport.h"
#include "core/check.h"

namespace longnet {
namespace {

// Sends from one rank to another, numbered from 0. They wait for the receiver, which copies
// straight from the sender's buffer (rendezvous), in a ring that grows only while it warms up.
struct Channel {
  using Ring = std::vector<std::span<const std::byte>>;
  Ring ring = Ring(16);
  int64_t posted = 0;    // sends so far
  int64_t copied = 0;    // receives done so far: they complete in order
  int64_t received = 0;  // receives posted so far

  std::span<const std::byte>& at(int64_t number) { return ring[size_t(number) % ring.size()]; }
  int64_t post(std::span<const std::byte> data) {
    if (posted - copied == int64_t(ring.size())) {
      Ring larger(ring.size() * 2);
      for (int64_t i = copied; i < posted; ++i) larger[size_t(i) % larger.size()] = at(i);
      ring = std::move(larger);
    }
    at(posted) = data;
    return posted++;
  }
};

// State shared by the ranks of one communicator. One mutex: copies happen outside of it.
//
//   Rank 1 posts its third send to rank 0 in channel (1, 0) as number 2; rank 0's third receive
//   from rank 1 copies it, straight from the sender's buffer.
class ThreadState {
 public:
  explicit ThreadState(int size)
      : ranks(size),
        moved(size_t(size)),
        channels(size_t(size) * size_t(size)),
        being_copied(size_t(size), 0) {}

  Channel& channel(Rank from, Rank to) {
    return channels[size_t(from) * size_t(ranks) + size_t(to)];
  }

  void throw_if_aborted() const {
    if (!abort_reason.empty()) throw Error("stopped because another rank failed: " + abort_reason);
  }

  // A barrier: each rank runs `join`, the last one to arrive also `last`, both under the lock.
  void rendezvous(const std::function<void()>& join, const std::function<void()>& last = {}) {
    std::unique_lock lock(mutex);
    throw_if_aborted();
    if (join) join();
    const int64_t mine = generation;
    if (++arrived == ranks) {
      if (last) last();
      arrived = 0;
      ++generation;
      met.notify_all();
      return;
    }
    met.wait(lock, [&] { return generation != mine || !abort_reason.empty(); });
    throw_if_aborted();
  }

  const int ranks;
  std::mutex mutex;
  std::condition_variable met;                 // all ranks have arrived
  std::vector<std::condition_variable> moved;  // by rank: a message to or from it has moved
  std::vector<Channel> channels;
  std::vector<int> being_copied;  // per sender: copies from its buffers that are going on
  std::string abort_reason;
  int arrived = 0;
  int64_t generation = 0;
  std::vector<std::string> texts;                 // being gathered by all_texts
  std::shared_ptr<ThreadState> part;              // result of first_ranks in progress
  std::vector<std::weak_ptr<ThreadState>> parts;  // all results: they are aborted with this one
};

void abort_world(ThreadState& world, const std::string& reason) {
  std::lock_guard lock(world.mutex);
  if (world.abort_reason.empty()) world.abort_reason = reason;
  for (const auto& part : world.parts)
    if (const auto alive = part.lock()) abort_world(*alive, reason);
  world.met.notify_all();
  for (std::condition_variable& moved : world.moved) moved.notify_all();
}

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadState> world, Rank rank)
      : world_(std::move(world)), rank_(rank) {
    // A warm run may have more requests in flight than the first one had. Few are collectives, with
    // two messages per rank.
    constexpr int kRequests = 64, kCollectives = 16;
    for (int i = 0; i < kRequests; ++i) add_request(i < kCollectives ? 2 * size() : 2);
    receives_.reserve(256);
  }

  Rank rank() const override { return rank_; }
  int size() const override { return world_->ranks; }
  std::string_view transport() const override { return kThreadTransport; }

  Request post(std::span<const Transfer> transfers) override {
    const Request id = new_request();
    const std::lock_guard lock(world_->mutex);
    world_->throw_if_aborted();
    for (const Transfer& t : transfers) {
      check(t.peer >= 0 && t.peer < size() && t.peer != rank_, "rank ", rank_,
            " exchanges messages with rank ", t.peer);
      const bool sends = t.kind == Transfer::Kind::kSend;
      if (!sends) receives_.push_back({id, messages_of(id).size()});
      messages_of(id).push_back(
          {t, sends ? world_->channel(rank_, t.peer).post({t.data, size_t(t.bytes)})
                    : world_->channel(t.peer, rank_).received++});
      if (sends) world_->moved[size_t(t.peer)].notify_one();
    }
    return id;
  }

  bool test(Request request) override {
    progress();
    return finish(request);
  }

  void wait(Request request) override {
    for (;;) {
      if (test(request)) return;
      std::unique_lock lock(world_->mutex);
      own_moves().wait(lock, [&] {
        return done_locked(request) || !world_->abort_reason.empty() ||
               std::ranges::any_of(receives_,
                                   [&](const Receive& r) { return can_copy(message(r)); });
      });
      world_->throw_if_aborted();
    }
  }

  void abandon() override {
    abort_world(*world_, concat("rank ", rank_, " gave up"));
    std::unique_lock lock(world_->mutex);
    own_moves().wait(lock, [&] { return world_->being_copied[size_t(rank_)] == 0; });
  }

  void barrier() override { world_->rendezvous({}); }
  void resting_barrier() override { barrier(); }
  void open_group(const RankGroup& group) override {
    check(group.index_of(rank_) >= 0, "rank ", rank_, " is not in the group that it opens");
  }

  void all_max(std::span<double> values) override {
    reduce(values, [](double a, double b) { return std::max(a, b); });
  }
  void all_sum(std::span<double> values) override {
    reduce(values, [](double a, double b) { return a + b; });
  }

  void broadcast(std::span<std::byte> data, Rank root) override {
    const auto all = all_texts(rank_ == root ? text_of(data) : "");
    std::memcpy(data.data(), all[size_t(root)].data(), data.size());
  }

  std::vector<std::string> all_texts(const std::string& mine) override {
    world_->rendezvous([&] {
      world_->texts.resize(size_t(size()));
      world_->texts[size_t(rank_)] = mine;
    });
    std::vector<std::string> all;
    world_->rendezvous([&] { all = world_->texts; });
    return all;
  }

  std::unique_ptr<Communicator> first_ranks(int count) override {
    std::shared_ptr<ThreadState> part;
    world_->rendezvous([&] {
      if (!world_->part)
        world_->parts.push_back(world_->part = std::make_shared<ThreadState>(count));
      part = world_->part;
    });
    world_->rendezvous({}, [&] { world_->part.reset(); });
    if (rank_ >= count) return nullptr;
    return std::make_unique<ThreadCommunicator>(part, rank_);
  }

  void abort(const std::string& reason) override { abort_world(*world_, reason); }
  void throw_if_broken() const override {
    const std::lock_guard lock(world_->mutex);
    world_->throw_if_aborted();
  }

 private:
  // A message of a request.
  struct Message {
    Transfer what;
    int64_t number;       // number in its channel
    bool copied = false;  // receives only
    bool sends() const { return what.kind == Transfer::Kind::kSend; }
  };
  struct InFlight {
    bool in_use = false;
    std::vector<Message> messages;  // keeps its capacity
  };
  struct Receive {
    Request request;
    size_t message;  // index in the request
  };

  std::condition_variable& own_moves() { return world_->moved[size_t(rank_)]; }
  InFlight& add_request(int messages) {
    requests_.emplace_back().messages.reserve(size_t(messages));
    return requests_.back();
  }
  Request new_request() {
    for (size_t i = 0; i < requests_.size(); ++i)
      if (!requests_[i].in_use) {
        requests_[i].in_use = true;
        return Request(i);
      }
    add_request(2).in_use = true;
    return Request(requests_.size()) - 1;
  }
  std::vector<Message>& messages_of(Request id) { return requests_[size_t(id)].messages; }
  Message& message(const Receive& r) { return messages_of(r.request)[r.message]; }

  // True when the send that a receive waits for has been posted and is the next one.
  bool can_copy(const Message& m) const {
    const Channel& c = world_->channel(m.what.peer, rank_);
    return c.copied == m.number && c.posted > m.number;
  }

  // Copies the sends that match this rank's posted receives, in the order of each channel.
  void progress() {
    for (size_t i = 0; i < receives_.size();) {
      Message& m = message(receives_[i]);
      const Rank peer = m.what.peer;
      std::span<const std::byte> send;
      {
        std::lock_guard lock(world_->mutex);
        if (!can_copy(m)) {
          ++i;
          continue;
        }
        world_->throw_if_aborted();
        send = world_->channel(peer, rank_).at(m.number);
        ++world_->being_copied[size_t(peer)];
      }
      const bool fits = int64_t(send.size()) == m.what.bytes;
      if (fits) std::copy(send.begin(), send.end(), m.what.data);
      {
        std::lock_guard lock(world_->mutex);
        ++world_->channel(peer, rank_).copied;
        --world_->being_copied[size_t(peer)];
        world_->moved[size_t(peer)].notify_one();
      }
      check(fits, "rank ", peer, " sent ", send.size(), " bytes, expected ", m.what.bytes);
      counters_.received(int64_t(send.size()));
      m.copied = true;
      receives_.erase(receives_.begin() + std::ptrdiff_t(i));
      i = 0;  // the next receive of this channel may be anywhere
    }
  }

  bool done_locked(Request id) {
    return std::ranges::all_of(messages_of(id), [&](const Message& m) {
      return m.sends() ? world_->channel(rank_, m.what.peer).copied > m.number : m.copied;
    });
  }

  bool finish(Request id) {
    check(id >= 0 && size_t(id) < requests_.size() && requests_[size_t(id)].in_use, "request ", id,
          " is not in flight");
    {
      std::lock_guard lock(world_->mutex);
      world_->throw_if_aborted();
      if (!done_locked(id)) return false;
    }
    for (const Message& m : messages_of(id))
      if (m.sends()) counters_.sent(m.what.bytes);  // its receiver has copied it
    messages_of(id).clear();
    requests_[size_t(id)].in_use = false;
    return true;
  }

  template <class T>
  static std::string text_of(std::span<T> data) {
    return {reinterpret_cast<const char*>(data.data()), data.size_bytes()};
  }
  // Combines in the order of the ranks.
  template <class Combine>
  void reduce(std::span<double> values, Combine combine) {
    const auto all = all_texts(text_of(values));
    std::memcpy(values.data(), all[0].data(), values.size_bytes());
    std::vector<double> others(values.size());
    for (size_t r = 1; r < all.size(); ++r) {
      check(all[r].size() == all[0].size(), "rank ", r, " reduces ", all[r].size(),
            " bytes, rank 0 ", all[0].size());
      std::memcpy(others.data(), all[r].data(), values.size_bytes());
      std::ranges::transform(values, others, values.begin(), combine);
    }
  }

  std::shared_ptr<ThreadState> world_;
  Rank rank_;
  std::vector<InFlight> requests_;
  std::vector<Receive> receives_;  // posted, not yet copied
};

}  // namespace

void run_on_threads(int ranks, const std::function<void(Communicator&)>& rank_main) {
  check(ranks >= 1, "needs at least one rank, not ", ranks);
  const auto world = std::make_shared<ThreadState>(ranks);
  std::mutex mutex;
  std::exception_ptr first;
  Rank failed = -1;
  const auto fail = [&](Rank r, const char* what) {
    {
      std::lock_guard lock(mutex);
      if (!first) first = std::current_exception(), failed = r;
    }
    abort_world(*world, what);
  };
  {
    std::vector<std::jthread> threads;
    try {
      while (int(threads.size()) < ranks)
        threads.emplace_back([&, r = Rank(threads.size())] {
          try {
            ThreadCommunicator comm(world, r);
            rank_main(comm);
          } catch (const std::exception& e) {
            fail(r, e.what());
          }
        });
    } catch (const std::system_error& e) {  // the ranks that have started would wait for this one
      fail(Rank(threads.size()), e.what());
    }
  }
  if (!first) return;
  try {
    std::rethrow_exception(first);
  } catch (const UsageError&) {
    throw;
  } catch (const std::system_error& e) {
    throw Error("rank ", failed, ": its thread could not start: ", e.what(),
                "; take fewer ranks, or raise the limits (ulimit -u, ulimit -v)");
  } catch (const std::exception& e) {
    throw Error("rank ", failed, ": ", e.what());
  }
}

void require_threads(int count) {
  std::latch all(1);
  std::vector<std::jthread> threads;
  std::string why;
  try {
    while (int(threads.size()) < count) threads.emplace_back([&all] { all.wait(); });
  } catch (const std::system_error& e) {
    why = e.what();
  }
  all.count_down();
  if (!why.empty())
    throw Error("only ", threads.size(), " of ", count, " threads could start: ", why,
                "; take fewer threads or ranks, or raise the limits (ulimit -u, ulimit -v)");
}

}  // namespace longnet
