// gpu_check: memory and events of one process in another, which is what transport cuda_ipc stands
// on when ranks are processes. Programs run with ranks as threads in the other sections.
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "core/check.h"
#include "gpu/check.h"
#include "gpu/support.h"
#include "kernels/cuda/rows.h"

namespace longnet::gpu {
namespace {

constexpr int64_t kFloats = (int64_t{3} << 20) + 5;  // more than one block of 2 MiB

class Line {
 public:
  explicit Line(int socket) : socket_(socket) {}
  ~Line() { ::close(socket_); }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;
  void send(const std::string& bytes) const {
    check(write(socket_, bytes.data(), bytes.size()) == ssize_t(bytes.size()), "a closed line");
  }
  std::string receive(size_t bytes) const {
    std::string all(bytes, '\0');
    for (size_t at = 0; at < bytes;) {
      const ssize_t got = read(socket_, all.data() + at, bytes - at);
      check(got > 0, "the other process is gone");
      at += size_t(got);
    }
    return all;
  }

 private:
  int socket_;
};

// Each side fills a buffer, shows it and the event behind the fill to the other, and copies the
// other's when that event is over.
bool exchange(const Line& line, float mine, float theirs) {
  MemoryLedger ledger;
  const DeviceBuffer out(ledger, "kv", 4 * kFloats, DeviceBuffer::Kind::kShared);
  const DeviceBuffer in(ledger, "kv", 4 * kFloats);
  const Stream stream;
  const Event filled(Event::Kind::kShared);
  fill_floats(reinterpret_cast<float*>(out.data()), kFloats, mine, stream);
  filled.record(stream);
  const std::string memory = export_memory(out.data()), event = filled.export_handle();
  line.send(memory);
  line.send(event);
  void* const other = import_memory(line.receive(memory.size()));
  const Event other_filled = Event::import_handle(line.receive(event.size()));
  stream.wait(other_filled);
  stream.copy(in.data(), other, in.size());
  stream.synchronize();
  line.send("1");  // the other may free its memory
  line.receive(1);
  close_memory(other);
  for (const float x : download<float>(in.data(), kFloats))
    if (x != theirs) return false;
  return true;
}

}  // namespace

int run_ipc_child(const char* socket) {
  signal(SIGPIPE, SIG_IGN);
  try {
    return exchange(Line(std::atoi(socket)), 2.0f, 1.0f) ? 0 : 1;
  } catch (const std::exception& e) {
    std::printf("  the other process: %s\n", e.what());
    return 2;
  }
}

void check_ipc(Outcome& out, bool) {
  int sockets[2];
  check(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
  signal(SIGPIPE, SIG_IGN);
  const std::string socket = std::to_string(sockets[1]);
  const pid_t child = fork();
  check(child >= 0, "fork");
  if (child == 0) {  // a program of its own: CUDA does not survive a fork
    ::close(sockets[0]);
    execl("/proc/self/exe", "gpu_check", "--ipc-child", socket.c_str(), nullptr);
    _exit(3);
  }
  ::close(sockets[1]);
  std::string failure;
  try {
    if (!exchange(Line(sockets[0]), 1.0f, 2.0f)) failure = "wrong numbers";
  } catch (const std::exception& e) {
    failure = e.what();
  }
  int status = 0;
  waitpid(child, &status, 0);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  out.expect(failure.empty() && code == 0,
             concat("memory of another process: ", failure, ", its exit code ", code));
}

}  // namespace longnet::gpu
