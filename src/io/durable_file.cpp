#include "io/durable_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/check.h"

namespace longnet {

DurableFile::DurableFile(const std::string& path, int flags)
    : path_(path), fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {
  check(fd_ >= 0, "cannot open ", path, ": ", std::strerror(errno));
}

DurableFile::~DurableFile() { ::close(fd_); }

void DurableFile::write_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd_, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    check(n > 0, "cannot write ", path_, ": ", std::strerror(errno));
    text.remove_prefix(size_t(n));
  }
  check(::fsync(fd_) == 0, "fsync of ", path_, ": ", std::strerror(errno));
}

void DurableFile::truncate(int64_t bytes) {
  check(::ftruncate(fd_, bytes) == 0, "cannot cut ", path_, ": ", std::strerror(errno));
}

}  // namespace longnet
