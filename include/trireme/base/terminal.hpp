// The terminal that a program writes to.
#pragma once

namespace trireme::base {

// Columns of the terminal behind this file descriptor; `otherwise` where it is none.
int terminal_columns(int file, int otherwise = 120);

}  // namespace trireme::base
