// State that the ranks of a communicator on threads share.
//
//   Rank 1 posts its third send to rank 0 in channel (1, 0) as number 2; rank 0's third receive
//   from rank 1 copies it, straight from the sender's buffer.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/rank_group.h"

namespace longnet {

// A send that waits for its receiver, who copies straight from the sender's buffer (rendezvous).
struct PostedSend {
  const std::byte* data;
  size_t size;
};

// Sends from one rank to another, numbered from 0; a ring that grows only while it warms up.
struct Channel {
  std::vector<PostedSend> ring{16};
  int64_t posted = 0;    // sends so far
  int64_t copied = 0;    // receives done so far: they complete in order
  int64_t received = 0;  // receives posted so far
};

// State shared by the ranks of one communicator. One mutex: copies happen outside of it.
class ThreadState {
 public:
  explicit ThreadState(int size)
      : ranks(size), channels(size_t(size) * size_t(size)), being_copied(size_t(size), 0) {}

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
      changed.notify_all();
      return;
    }
    changed.wait(lock, [&] { return generation != mine || !abort_reason.empty(); });
    throw_if_aborted();
  }

  const int ranks;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Channel> channels;
  std::vector<int> being_copied;  // per sender: copies from its buffers that are going on
  std::string abort_reason;
  int arrived = 0;
  int64_t generation = 0;
  // Scratch of the collectives outside of timed regions.
  std::vector<double> numbers;
  std::vector<std::byte> bytes;
  std::vector<std::string> texts;
  std::shared_ptr<ThreadState> part;              // being handed out by first_ranks
  std::vector<std::weak_ptr<ThreadState>> parts;  // all handed out: they are aborted with this one
};

}  // namespace longnet
