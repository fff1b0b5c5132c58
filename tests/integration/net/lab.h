/* A lab of network namespaces: "host" (where the test itself lives once lab_open returned), "internet", and
 * boxes wired to the fabric under test. Nothing outside of them is touched. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/net/net.h"
#include "engine/net/nl.h"
#include "engine/net/ns.h"

#define LAB_PORT 8080 /* of the internet: echoes TCP on every address, UDP on LAB_V4 and LAB_V6 */
#define LAB_V4 "198.51.100.7"
#define LAB_V6 "2001:db8:1::7"
#define LAB_HOST4 "203.0.113.1" /* the host's own address, with a listener on LAB_PORT */

struct lab {
    struct hf_net_config cfg;
    char id[9], host_path[64], internet_path[64];
    int internet_fd;
};
extern struct lab lab;

/* 77 in *ret when this machine can't (no root). */
int lab_open(int *ret);
void lab_close(void);
/* Runs a shell command in a namespace (-1: the current one); its exit status. */
int lab_sh(int ns_fd, const char *fmt, ...) HF_PRINTF(2, 3);

/* A plain network namespace wired as box `key`; the fd of the namespace. */
int lab_box(struct hf_net *n, uint32_t key);
void lab_box_end(struct hf_net *n, uint32_t key, int fd);

struct hf_addr lab_addr(const char *text);
struct hf_cidr lab_cidr(const char *text);
/* A TCP connection from a namespace: the fd, or -errno (-ETIMEDOUT after `ms`). */
int lab_dial(int ns_fd, const char *addr, uint16_t port, int ms);
/* Sends a byte and waits for its echo; 0, or -errno. */
int lab_echo(int fd, int ms);
/* One datagram there and back; 0, or -errno. */
int lab_udp(int ns_fd, const char *addr, uint16_t port, int ms);
/* A listener in a namespace. */
int lab_listen(int fd, const char *addr, uint16_t port);
