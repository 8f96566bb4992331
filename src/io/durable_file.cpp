#include "io/durable_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/check.h"

namespace longnet {

DurableFile::DurableFile(const std::string& path, int flags)
    : path_(path), fd_(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0644)) {
  check(fd_ >= 0, "cannot open ", path, ": ", std::strerror(errno));
}

DurableFile::~DurableFile() { ::close(fd_); }

void DurableFile::write_all(std::string_view text) {
  const off_t begin = ::lseek(fd_, 0, SEEK_END);
  while (!text.empty()) {
    const ssize_t n = ::write(fd_, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const int why = errno;
      if (begin >= 0) truncate(begin);
      check(false, "cannot write ", path_, ": ", std::strerror(why));
    }
    text.remove_prefix(size_t(n));
  }
  check(::fsync(fd_) == 0, "fsync of ", path_, ": ", std::strerror(errno));
}

void DurableFile::truncate(int64_t bytes) {
  check(::ftruncate(fd_, bytes) == 0, "cannot cut ", path_, ": ", std::strerror(errno));
}

bool DurableFile::lock(bool alone) {
  return ::flock(fd_, (alone ? LOCK_EX : LOCK_SH) | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

}  // namespace longnet
