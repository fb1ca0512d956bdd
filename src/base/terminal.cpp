#include "trireme/base/terminal.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

namespace trireme::base {

int terminal_columns(int file, int otherwise) {
  winsize size{};
  const bool known = ::ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : otherwise;
}

}  // namespace trireme::base
