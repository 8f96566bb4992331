// The messages of a simulation: matched in order, delayed by latency, slowed by each other.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "simulate/event_queue.h"
#include "simulate/fair_share.h"
#include "simulate/topology.h"

namespace longnet {

// One side of a message: op `index` of the communication lane of simulated rank `rank`.
struct MessageSide {
  uint32_t rank, index;
  double posted_s;
};

class Network {
 public:
  struct Kind {
    bool alone_is_fast;  // messages that nobody else can slow are timed without events
    bool pauses;         // set_progress will be called
    // Bytes per second of all messages together of a rank that does not progress them; 0: none.
    double bytes_per_s_without_progress = 0;
  };
  // `simulated` ranks stand for all.
  Network(const Topology& topology, AlphaSet alpha, int simulated, const Kind& kind);

  // A channel from a simulated rank to any rank; before the first post. Its number.
  uint32_t add_channel(Rank from, Rank to);
  void seal();  // after the last channel: finds those that nobody else can slow
  // One side of a message; it starts when the other one is there.
  void post(uint32_t channel, const MessageSide& side, double bytes, bool is_send);
  double overhead_s(uint32_t channel) const { return channels_[channel].overhead; }

  // Time-ordered part; the engine puts its own events into the same queue.
  void latency_over(uint32_t message, double now);
  void flow_ends(uint32_t channel, uint32_t version, double now);
  void settle(double now);  // new rates, before the clock moves on

  // A rank that computes and cannot progress its messages meanwhile, or that can again.
  void set_progress(Rank rank, bool progresses, double now);
  // Counts traffic of the rank that is no message of this network: a collective by formula.
  void count_flowing(Rank rank, int change, double now);
  int flowing(Rank rank) const { return flowing_[size_t(rank)]; }

  EventQueue& events() { return events_; }
  // Called when a message is over, at `end_s`.
  std::function<void(const MessageSide& send, const MessageSide& recv, double end_s)> done;
  std::function<void(Rank rank, double now)> flowing_changed;  // 0 <-> 1 flows of a rank; optional
  int64_t messages = 0, shared_messages = 0;

 private:
  struct Channel {
    uint32_t sender, receiver;  // simulated twins of the two ranks
    double alpha, seconds_per_byte, overhead;
    double free_at = 0;                                    // when the message before is over
    uint32_t first = kNoSlot, last = kNoSlot;              // posted sides without a partner
    uint32_t queue_first = kNoSlot, queue_last = kNoSlot;  // messages whose latency is over
    bool holds_sends = false;
    bool alone = false;   // nobody else can slow its messages
    bool timed = false;   // alone, and no event is needed to know their ends
    bool shares = false;  // its message has a rate of share_
    // The message that has the channel: it flows, but for pauses, until its end. The version counts
    // the ends that have been foretold; only the last one is true.
    uint32_t message = kNoSlot, version = 0;
    double left = 0, rate = 0, since = 0;
  };
  struct Ends {
    Rank from, to;                           // of a channel, as the schedule names them
    uint32_t first_link = 0, num_links = 0;  // in links_
  };
  struct Posted {
    MessageSide side;
    double bytes;
    uint32_t next;
  };
  struct Message {
    MessageSide send, recv;
    double bytes;
    uint32_t channel, next = kNoSlot;
  };

  void start(uint32_t channel, const MessageSide& send, const MessageSide& recv, double bytes);
  void begin_flow(uint32_t message, double now);
  void run_flow(uint32_t channel, double now);
  void pause_flow(uint32_t channel, double now);
  bool is_slowed() const { return kind_.bytes_per_s_without_progress > 0; }
  bool may_flow(const Channel& c) const {
    return is_slowed() || (progresses_[c.sender] && progresses_[c.receiver]);
  }

  const Topology& topology_;
  AlphaSet alpha_;
  int simulated_;
  Kind kind_;
  int first_slow_link_;            // one per simulated rank, behind the topology's
  std::vector<Channel> channels_;  // a channel's number is that of its flow in share_
  std::vector<Ends> ends_;
  std::vector<int> links_;  // routes of the channels, one after another
  std::vector<Posted> posted_;
  std::vector<Message> messages_;
  std::vector<uint32_t> free_posted_, free_messages_;
  std::vector<std::vector<uint32_t>> channels_of_;  // by simulated rank, where flows may pause
  std::vector<bool> progresses_;
  std::vector<int> flowing_;
  FairShare share_;
  EventQueue events_;
};

}  // namespace longnet
