#include "comm/threads/thread_world.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

#include "comm/threads/thread_state.h"
#include "core/check.h"

namespace longnet {
namespace {

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadState> world, Rank rank)
      : world_(std::move(world)), rank_(rank) {
    // A warm run may have more requests in flight than the first one had.
    for (int i = 0; i < 64; ++i) add_request();
    receives_.reserve(256);
  }

  Rank rank() const override { return rank_; }
  int size() const override { return world_->ranks; }
  std::string_view transport() const override { return "threads"; }

  Request isend(Rank to, std::span<const std::byte> data) override {
    check(to >= 0 && to < size() && to != rank_, "cannot send to rank ", to);
    count_send(data.size());
    return post_send(to, data);
  }

  Request irecv(Rank from, std::span<std::byte> into) override {
    check(from >= 0 && from < size() && from != rank_, "cannot receive from rank ", from);
    count_receive(into.size());
    return post_receive(from, into);
  }

  Request iall_gather(const RankGroup& group, std::span<std::byte> into,
                      std::span<const int64_t> counts) override {
    const int me = group.index_of(rank_);
    check(me >= 0 && int(counts.size()) == group.count, "not a gather of this rank");
    const std::span<std::byte> own = part_of(into, counts, me);
    count_send(own.size(), group.count - 1);
    count_receive(into.size() - own.size());
    const Request all = new_request();
    for (int i = 0; i < group.count; ++i)
      if (i != me) exchange(all, group[i], own, part_of(into, counts, i));
    return all;
  }

  Request iall_to_all(const RankGroup& group, std::span<const std::byte> from,
                      std::span<const int64_t> from_counts, std::span<std::byte> into,
                      std::span<const int64_t> into_counts) override {
    const int me = group.index_of(rank_);
    check(me >= 0 && int(from_counts.size()) == group.count, "not an all-to-all of this rank");
    const Request all = new_request();
    for (int i = 0; i < group.count; ++i) {
      const auto out = part_of(from, from_counts, i);
      const auto in = part_of(into, into_counts, i);
      if (i == me) {
        check(out.size() == in.size(), "own part has ", out.size(), " bytes, not ", in.size());
        std::copy(out.begin(), out.end(), in.begin());
        continue;
      }
      count_send(out.size());
      count_receive(in.size());
      exchange(all, group[i], out, in);
    }
    return all;
  }

  bool test(Request request) override {
    progress();
    return finish(request);
  }

  void wait(Request request) override {
    for (;;) {
      if (test(request)) return;
      std::unique_lock lock(world_->mutex);
      world_->changed.wait(lock, [&] {
        return done_locked(request) || can_progress_locked() || !world_->abort_reason.empty();
      });
      world_->throw_if_aborted();
    }
  }

  void abandon() override {
    abort_world(*world_, concat("rank ", rank_, " gave up"));
    std::unique_lock lock(world_->mutex);
    world_->changed.wait(lock, [&] { return world_->being_copied[size_t(rank_)] == 0; });
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
    world_->rendezvous([&] {
      if (rank_ == root) world_->bytes.assign(data.begin(), data.end());
    });
    world_->rendezvous(
        [&] { std::copy(world_->bytes.begin(), world_->bytes.end(), data.begin()); });
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
  static void abort_world(ThreadState& world, const std::string& reason) {
    std::lock_guard lock(world.mutex);
    if (world.abort_reason.empty()) world.abort_reason = reason;
    for (const auto& part : world.parts)
      if (const auto alive = part.lock()) abort_world(*alive, reason);
    world.changed.notify_all();
  }

  struct RequestState {
    enum class Kind { kFree, kSend, kReceive, kGather } kind = Kind::kFree;
    Rank peer = -1;
    int64_t number = 0;  // in its channel
    std::span<std::byte> into;
    bool copied = false;
    std::vector<Request> children;  // of a gather; keeps its capacity
  };

  RequestState& add_request() {
    requests_.emplace_back().children.reserve(2 * size_t(world_->ranks));
    return requests_.back();
  }
  Request new_request() {
    for (size_t i = 0; i < requests_.size(); ++i)
      if (requests_[i].kind == RequestState::Kind::kFree) {
        requests_[i].kind = RequestState::Kind::kGather;
        requests_[i].children.clear();
        return Request(i);
      }
    add_request().kind = RequestState::Kind::kGather;
    return Request(requests_.size()) - 1;
  }

  // Both directions with one partner, as children of a collective's request.
  void exchange(Request all, Rank with, std::span<const std::byte> out, std::span<std::byte> in) {
    // Not through a reference to the request: posting may move the vector.
    const Request sent = out.empty() ? -1 : post_send(with, out);
    const Request got = in.empty() ? -1 : post_receive(with, in);
    for (Request child : {sent, got})
      if (child >= 0) requests_[size_t(all)].children.push_back(child);
  }

  Request post_send(Rank to, std::span<const std::byte> data) {
    const Request id = new_request();
    RequestState& r = requests_[size_t(id)];
    r.kind = RequestState::Kind::kSend;
    r.peer = to;
    std::lock_guard lock(world_->mutex);
    world_->throw_if_aborted();
    Channel& c = world_->channel(rank_, to);
    if (c.posted - c.copied == int64_t(c.ring.size())) grow(c);
    r.number = c.posted++;
    c.ring[size_t(r.number) % c.ring.size()] = {data.data(), data.size()};
    world_->changed.notify_all();
    return id;
  }

  static void grow(Channel& c) {
    std::vector<PostedSend> larger(c.ring.size() * 2);
    for (int64_t i = c.copied; i < c.posted; ++i)
      larger[size_t(i) % larger.size()] = c.ring[size_t(i) % c.ring.size()];
    c.ring = std::move(larger);
  }

  Request post_receive(Rank from, std::span<std::byte> into) {
    const Request id = new_request();
    RequestState& r = requests_[size_t(id)];
    r = {.kind = RequestState::Kind::kReceive,
         .peer = from,
         .into = into,
         .children = std::move(r.children)};
    std::lock_guard lock(world_->mutex);
    r.number = world_->channel(from, rank_).received++;
    receives_.push_back(id);
    return id;
  }

  // Copies the sends that match this rank's posted receives, in the order of each channel.
  void progress() {
    for (size_t i = 0; i < receives_.size();) {
      RequestState& r = requests_[size_t(receives_[i])];
      PostedSend send;
      {
        std::lock_guard lock(world_->mutex);
        const Channel& c = world_->channel(r.peer, rank_);
        if (c.copied != r.number || c.posted <= r.number) {
          ++i;
          continue;
        }
        world_->throw_if_aborted();
        send = c.ring[size_t(r.number) % c.ring.size()];
        ++world_->being_copied[size_t(r.peer)];
      }
      const bool fits = send.size == r.into.size();
      if (fits && send.size > 0) std::memcpy(r.into.data(), send.data, send.size);
      {
        std::lock_guard lock(world_->mutex);
        ++world_->channel(r.peer, rank_).copied;
        --world_->being_copied[size_t(r.peer)];
        world_->changed.notify_all();
      }
      check(fits, "rank ", r.peer, " sent ", send.size, " bytes, expected ", r.into.size());
      r.copied = true;
      receives_.erase(receives_.begin() + std::ptrdiff_t(i));
      i = 0;  // the next receive of this channel may stand anywhere
    }
  }

  bool can_progress_locked() const {
    for (Request id : receives_) {
      const RequestState& r = requests_[size_t(id)];
      const Channel& c = world_->channel(r.peer, rank_);
      if (c.copied == r.number && c.posted > r.number) return true;
    }
    return false;
  }

  bool done_locked(Request id) const {
    const RequestState& r = requests_[size_t(id)];
    switch (r.kind) {
      case RequestState::Kind::kSend:
        return world_->channel(rank_, r.peer).copied > r.number;
      case RequestState::Kind::kReceive:
        return r.copied;
      case RequestState::Kind::kGather:
        return std::all_of(r.children.begin(), r.children.end(),
                           [&](Request c) { return done_locked(c); });
      default:
        return true;
    }
  }

  bool finish(Request id) {
    check(id >= 0 && size_t(id) < requests_.size() &&
              requests_[size_t(id)].kind != RequestState::Kind::kFree,
          "request ", id, " is not in flight");
    {
      std::lock_guard lock(world_->mutex);
      world_->throw_if_aborted();
      if (!done_locked(id)) return false;
    }
    for (Request child : requests_[size_t(id)].children)
      requests_[size_t(child)].kind = RequestState::Kind::kFree;
    requests_[size_t(id)].children.clear();
    requests_[size_t(id)].kind = RequestState::Kind::kFree;
    return true;
  }

  template <class Combine>
  void reduce(std::span<double> values, Combine combine) {
    world_->rendezvous([&] {
      auto& all = world_->numbers;
      if (world_->arrived == 0)
        all.assign(values.begin(), values.end());
      else
        for (size_t i = 0; i < values.size(); ++i) all[i] = combine(all[i], values[i]);
    });
    world_->rendezvous(
        [&] { std::copy_n(world_->numbers.begin(), values.size(), values.begin()); });
  }

  std::shared_ptr<ThreadState> world_;
  Rank rank_;
  std::vector<RequestState> requests_;
  std::vector<Request> receives_;  // posted, not yet copied
};

}  // namespace

void run_on_threads(int ranks, const std::function<void(Communicator&)>& rank_main) {
  check(ranks >= 1, "needs at least one rank, not ", ranks);
  const auto world = std::make_shared<ThreadState>(ranks);
  std::mutex mutex;
  std::exception_ptr first;
  Rank failed = -1;
  {
    std::vector<std::jthread> threads;
    for (Rank r = 0; r < ranks; ++r)
      threads.emplace_back([&, r] {
        ThreadCommunicator comm(world, r);
        try {
          rank_main(comm);
        } catch (const std::exception& e) {
          {
            std::lock_guard lock(mutex);
            if (!first) first = std::current_exception(), failed = r;
          }
          comm.abort(e.what());
        }
      });
  }
  if (!first) return;
  try {
    std::rethrow_exception(first);
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception& e) {
    throw Error(concat("rank ", failed, ": ", e.what()));
  }
}

}  // namespace longnet
