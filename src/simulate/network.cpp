#include "simulate/network.h"

#include <algorithm>
#include <limits>
#include <span>

#include "core/check.h"
#include "simulate/pool.h"

namespace longnet {

Network::Network(const Topology& topology, AlphaSet alpha, int simulated, const Kind& kind)
    : topology_(topology),
      alpha_(alpha),
      simulated_(simulated),
      kind_(kind),
      first_slow_link_(topology.num_links()),
      flowing_of_(size_t(simulated)),
      progresses_(size_t(simulated), true),
      flowing_(size_t(simulated), 0),
      share_(topology.capacities()) {
  for (int i = 0; is_slowed() && i < simulated; ++i)
    share_.add_link(kind.bytes_per_s_without_progress);
}

uint32_t Network::add_channel(Rank from, Rank to) {
  const Route route = topology_.route(from, to);
  const auto first_link = uint32_t(links_.size());
  double rate = std::numeric_limits<double>::infinity();
  for (const int link : route) {
    rate = std::min(rate, topology_.capacity(link));
    links_.push_back(topology_.representative(link, simulated_));
  }
  const double most = topology_.pair_bytes_per_s(route);
  const bool limited = most > 0 && most < rate;
  const double seconds_per_byte = 1 / (limited ? most : rate);
  if (limited) links_.push_back(share_.add_link(1 / seconds_per_byte));
  channels_.push_back({.from = from,
                       .to = to,
                       .sender = uint32_t(from % simulated_),
                       .receiver = uint32_t(to % simulated_),
                       .alpha = topology_.alpha_s(route, alpha_),
                       .seconds_per_byte = seconds_per_byte,
                       .overhead = topology_.overhead_s(route),
                       .first_link = first_link,
                       .num_links = uint32_t(links_.size()) - first_link});
  return uint32_t(channels_.size()) - 1;
}

void Network::seal() {
  std::vector<int> users;
  for (const int link : links_) {
    if (size_t(link) >= users.size()) users.resize(size_t(link) + 1);
    ++users[size_t(link)];
  }
  const auto own = [&](int link) { return users[size_t(link)] == 1; };
  for (Channel& c : channels_)
    c.alone = kind_.alone_is_fast &&
              std::ranges::all_of(std::span(links_).subspan(c.first_link, c.num_links), own);
}

void Network::post(uint32_t channel, const MessageSide& side, double bytes, bool is_send) {
  Channel& c = channels_[channel];
  if (c.first == kNoSlot || c.holds_sends == is_send) {
    const uint32_t id = take_slot(posted_, free_posted_);
    posted_[id] = {side, bytes, kNoSlot};
    append(posted_, id, c.first, c.last);
    c.holds_sends = is_send;
    return;
  }
  const Posted other = posted_[c.first];
  free_posted_.push_back(c.first);
  c.first = other.next;
  check(other.bytes == bytes, "a message from rank ", c.from, " to rank ", c.to, " has ",
        is_send ? bytes : other.bytes, " bytes on one side and ", is_send ? other.bytes : bytes,
        " on the other");
  start(channel, is_send ? side : other.side, is_send ? other.side : side, bytes);
}

void Network::start(uint32_t channel, const MessageSide& send, const MessageSide& recv,
                    double bytes) {
  ++messages;
  Channel& c = channels_[channel];
  const double ready = std::max(send.posted_s, recv.posted_s) + c.alpha;
  if (c.alone) {
    c.free_at = std::max(ready, c.free_at) + bytes * c.seconds_per_byte;
    done(send, recv, c.free_at);
    return;
  }
  ++shared_messages;
  const uint32_t id = take_slot(messages_, free_messages_);
  Message& message = messages_[id];
  message = {
      .send = send, .recv = recv, .bytes = bytes, .channel = channel, .version = message.version};
  events_.push(ready, EventKind::kLatencyOver, id);
}

void Network::latency_over(uint32_t message, double now) {
  Channel& c = channels_[messages_[message].channel];
  if (!c.busy) {
    c.busy = true;
    begin_flow(message, now);
    return;
  }
  append(messages_, message, c.queue_first, c.queue_last);
}

void Network::begin_flow(uint32_t message, double now) {
  Message& m = messages_[message];
  const Channel& c = channels_[m.channel];
  m.left = m.bytes;
  if (kind_.pauses) {
    flowing_of_[c.sender].push_back(message);
    flowing_of_[c.receiver].push_back(message);
  }
  if (may_flow(c)) run_flow(message, now);
}

void Network::run_flow(uint32_t message, double now) {
  Message& m = messages_[message];
  const Channel& c = channels_[m.channel];
  crossed_.assign(links_.begin() + c.first_link, links_.begin() + c.first_link + c.num_links);
  if (is_slowed())
    for (const uint32_t rank : {c.sender, c.receiver})
      if (!progresses_[rank]) crossed_.push_back(first_slow_link_ + int(rank));
  m.share = share_.add(crossed_);
  m.rate = 0;
  m.since = now;
  if (m.share >= message_of_share_.size()) message_of_share_.resize(m.share + 1);
  message_of_share_[m.share] = message;
  count_flowing(Rank(c.sender), 1, now);
  count_flowing(Rank(c.receiver), 1, now);
}

void Network::pause_flow(uint32_t message, double now) {
  Message& m = messages_[message];
  const Channel& c = channels_[m.channel];
  m.left -= m.rate * (now - m.since);
  share_.remove(m.share);
  m.share = kNoSlot;
  ++m.version;  // its end is not known any more
  count_flowing(Rank(c.sender), -1, now);
  count_flowing(Rank(c.receiver), -1, now);
}

void Network::count_flowing(Rank rank, int change, double now) {
  int& count = flowing_[size_t(rank)];
  const bool before = count > 0;
  count += change;
  if (before != (count > 0) && flowing_changed) flowing_changed(rank, now);
}

void Network::flow_ends(uint32_t message, uint32_t version, double now) {
  if (messages_[message].version != version) return;
  const Message m = messages_[message];
  Channel& c = channels_[m.channel];
  pause_flow(message, now);
  if (kind_.pauses)
    for (const uint32_t rank : {c.sender, c.receiver}) {
      auto& list = flowing_of_[rank];
      list.erase(std::ranges::find(list, message));
    }
  free_messages_.push_back(message);
  c.busy = c.queue_first != kNoSlot;
  if (c.busy) {
    const uint32_t next = c.queue_first;
    c.queue_first = messages_[next].next;
    begin_flow(next, now);
  }
  done(m.send, m.recv, now);
}

void Network::settle(double now) {
  for (const FairShare::Flow share : share_.update()) {
    const uint32_t message = message_of_share_[share];
    Message& m = messages_[message];
    m.left = std::max(0.0, m.left - m.rate * (now - m.since));
    m.since = now;
    m.rate = share_.rate(share);
    events_.push(now + m.left / m.rate, EventKind::kFlowEnds, message, ++m.version);
  }
}

void Network::set_progress(Rank rank, bool progresses, double now) {
  if (progresses_[size_t(rank)] == progresses) return;
  progresses_[size_t(rank)] = progresses;
  for (const uint32_t message : flowing_of_[size_t(rank)]) {
    const Message& m = messages_[message];
    // Over at this very moment, but for rounding: its end is the next event.
    const double left = m.left - m.rate * (now - m.since);
    if (m.share != kNoSlot && left <= 1e-9 * m.bytes) continue;
    const bool may = may_flow(channels_[m.channel]);
    if (is_slowed()) pause_flow(message, now);  // its links change
    if (may && m.share == kNoSlot) run_flow(message, now);
    if (!may && m.share != kNoSlot) pause_flow(message, now);
  }
}

}  // namespace longnet
