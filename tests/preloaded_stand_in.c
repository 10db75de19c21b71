/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Stands in for the interpreter REAL, see preloaded.py: asks the server at ADDRESS for a process and ends as it ends. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define MOST_FDS 250

extern char **environ;
static const char *const programs[] = {PROGRAMS};
static int conn;

static void fail(void) {
    fputs("the server of tests/preloaded.py is gone\n", stderr);
    abort();
}

static int known(const char *module) {
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        if (!strncmp(module, programs[i], strlen(programs[i])))
            return 1;
    return 0;
}

/* Whether the environment has what only an interpreter that starts can heed. */
static int apart(void) {
    static const char *const locales[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (int i = 0; i < 3; i++) {
        const char *value = getenv(locales[i]);
        if (value && *value && strcmp(value, "C.UTF-8") && strcmp(value, "en_US.UTF-8"))
            return 1;
    }
    for (char **each = environ; *each; each++)
        if (!strncmp(*each, "PYTHON", 6) && strncmp(*each, "PYTHONPATH=", 11) &&
            strncmp(*each, "PYTHONDONTWRITEBYTECODE=", 24))
            return 1;
    return 0;
}

static int open_fds(int fds[MOST_FDS]) {
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    for (struct dirent *entry; directory && (entry = readdir(directory));)
        if (*entry->d_name != '.' && atoi(entry->d_name) != dirfd(directory) && count < MOST_FDS)
            fds[count++] = atoi(entry->d_name);
    closedir(directory);
    return count;
}

/* Send the length of what follows, then, each with a zero byte: umask, descriptors, directory, arguments, "", variables. */
static void ask(char **arguments) {
    int fds[MOST_FDS], count = open_fds(fds);
    mode_t mask = umask(0);
    char *data, *here = getcwd(NULL, 0);
    size_t size;
    FILE *out = open_memstream(&data, &size);
    fwrite("    ", 4, 1, out);
    fprintf(out, "%d%c", mask, 0);
    for (int i = 0; i < count; i++)
        fprintf(out, "%d ", fds[i]);
    fprintf(out, "%c%s%c", 0, here, 0);
    for (; *arguments; arguments++)
        fprintf(out, "=%s%c", *arguments, 0);
    fputc(0, out);
    for (char **each = environ; *each; each++)
        fprintf(out, "%s%c", *each, 0);
    fclose(out);
    *(uint32_t *)data = size - 4;

    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = ADDRESS};
    conn = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(conn, (struct sockaddr *)&address, sizeof address))
        fail();
    char control[CMSG_SPACE(sizeof fds)] = {0};
    struct iovec all = {.iov_base = data, .iov_len = size};
    struct msghdr message = {.msg_iov = &all, .msg_iovlen = 1};
    if (count) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(count * sizeof *fds);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(count * sizeof *fds);
        memcpy(CMSG_DATA(header), fds, count * sizeof *fds);
    }
    ssize_t sent = sendmsg(conn, &message, MSG_NOSIGNAL);
    for (ssize_t more = sent; sent > 0 && (size_t)sent < size; sent += more)
        if ((more = send(conn, data + sent, size - sent, MSG_NOSIGNAL)) < 0)
            fail();
    if (sent < 0)
        fail();
    /* Whoever waits for the end of a pipe waits until nobody holds it. */
    for (int i = 0; i < count; i++)
        close(fds[i]);
}

static void receive(void *into, size_t size) {
    ssize_t got;
    do
        got = recv(conn, into, size, MSG_WAITALL);
    while (got < 0 && errno == EINTR);
    if (got != (ssize_t)size)
        fail();
}

static void pass_on(int number) {
    unsigned char byte = number;
    send(conn, &byte, 1, MSG_NOSIGNAL);
}

int main(int argc, char **argv) {
    int at = 1;
    while (at < argc && (!strcmp(argv[at], "-I") || !strcmp(argv[at], "-B")))
        at++;
    if (at + 1 >= argc || strcmp(argv[at], "-m") || !known(argv[at + 1]) || apart()) {
        argv[0] = REAL;
        execv(REAL, argv);
        return 127;
    }
    /* Those that come before there is a process wait. */
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    ask(argv + at + 1);
    char started;
    receive(&started, 1);
    for (int number = 1; number < SIGRTMIN; number++)
        if (number != SIGCHLD && number != SIGPIPE && number != SIGCONT)
            signal(number, pass_on);
    sigprocmask(SIG_SETMASK, &before, NULL);
    int32_t status;
    receive(&status, sizeof status);
    if (status < 0) {
        signal(-status, SIG_DFL);
        kill(getpid(), -status);
        pause();
    }
    _exit(status);
}
