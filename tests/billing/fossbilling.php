<?php
/**
 * FOSSBilling in the small: loads the server manager as FOSSBilling does, calls one of its methods for the service that
 * standard input gives as JSON, and prints the answer, or the exception that FOSSBilling would show. What FOSSBilling
 * itself offers to server managers is defined here.
 */

declare(strict_types=1);

error_reporting(E_ALL);
set_error_handler(function (int $level, string $message, string $file, int $line) {
    throw new ErrorException($message, 0, $level, $file, $line);
});

final class Server_Exception extends Exception
{
}

/** What is set is what is got: `setIp` and `getIp`. */
abstract class Values
{
    protected array $values = [];

    public function __construct(array $values = [])
    {
        $this->values = $values;
    }

    protected function value(string $name, ...$given)
    {
        if ($given === []) {
            return $this->values[$name] ?? null;
        }
        $this->values[$name] = $given[0];
        return $this;
    }

    public function all(): array
    {
        return $this->values;
    }
}

final class Server_Client extends Values
{
    public function getEmail(): ?string { return $this->value('email'); }
    public function getFullName(): ?string { return $this->value('full_name'); }
    public function getCompany(): ?string { return $this->value('company'); }
}

final class Server_Package extends Values
{
    public function getName(): ?string { return $this->value('name'); }
    public function getCustomValue(string $name): ?string { return $this->value('custom')[$name] ?? null; }
}

final class Server_Account extends Values
{
    public ?Server_Client $client = null;
    public ?Server_Package $package = null;

    public function getClient(): ?Server_Client { return $this->client; }
    public function getPackage(): Server_Package { return $this->package; }
    public function getUsername(): ?string { return $this->value('username'); }
    public function getPassword(): ?string { return $this->value('password'); }
    public function getDomain(): ?string { return $this->value('domain'); }
    public function getNote(): ?string { return $this->value('note'); }
    public function setIp(?string $ip): static { return $this->value('ip', $ip); }
    public function setSuspended(bool $suspended): static { return $this->value('suspended', $suspended); }
}

final class Log
{
    public array $lines = [];

    public function __call(string $level, array $arguments): void
    {
        $this->lines[] = [$level, $arguments[0]];
    }
}

abstract class Server_Manager
{
    protected array $_config;
    public Log $log;

    public function __construct(array $options)
    {
        $this->log = new Log();
        $known = ['ip', 'host', 'secure', 'username', 'password', 'accesshash', 'config', 'port', 'passwordLength'];
        $this->_config = $options + array_fill_keys($known, null);
        $this->init();
    }

    protected function init()
    {
    }

    public function getLog(): Log
    {
        return $this->log;
    }

    abstract public function getLoginUrl(?Server_Account $account);
    abstract public function getResellerLoginUrl(?Server_Account $account);
    abstract public function testConnection();
    abstract public function createAccount(Server_Account $account);
    abstract public function synchronizeAccount(Server_Account $account);
    abstract public function suspendAccount(Server_Account $account);
    abstract public function unsuspendAccount(Server_Account $account);
    abstract public function cancelAccount(Server_Account $account);
    abstract public function changeAccountPassword(Server_Account $account, string $newPassword);
    abstract public function changeAccountUsername(Server_Account $account, string $newUsername);
    abstract public function changeAccountDomain(Server_Account $account, string $newDomain);
    abstract public function changeAccountIp(Server_Account $account, string $newIp);
    abstract public function changeAccountPackage(Server_Account $account, Server_Package $package);
}

[, $manager, $method] = $argv;
require $manager;
$given = json_decode(stream_get_contents(STDIN), true, 512, JSON_THROW_ON_ERROR);
$account = new Server_Account($given['account']);
$account->client = new Server_Client($given['client']);
$account->package = new Server_Package($given['package']);
$more = match ($method) {
    'changeAccountPackage' => [new Server_Package($given['new'])],
    'changeAccountPassword', 'changeAccountUsername', 'changeAccountDomain', 'changeAccountIp' => [$given['new']],
    default => [],
};
$told = ['answer' => null, 'error' => null, 'log' => []];
try {
    $svc = new Server_Manager_Svc($given['server']);
    $answer = $method === 'testConnection' ? $svc->testConnection() : $svc->$method($account, ...$more);
    $told['answer'] = $answer instanceof Server_Account ? $answer->all() : $answer;
    $told['log'] = $svc->log->lines;
} catch (Server_Exception $error) {
    $told['error'] = $error->getMessage();
}
echo json_encode($told, JSON_THROW_ON_ERROR);
