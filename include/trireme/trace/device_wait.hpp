// Time that a device waits: regions have only the time of the host, which gives it work and goes
// on.
#pragma once

namespace trireme::trace {

// Seconds that a device stood waiting for other ranks, which summaries add to its rank's
// communication. Any thread.
void add_device_wait(double seconds);
double device_wait();       // so far
double take_device_wait();  // since the last such call; by one thread

}  // namespace trireme::trace
