<?php

declare(strict_types=1);

/**
 * Server manager of FOSSBilling for machines of svc. docs/billing.md says how it is installed and set up.
 *
 * A service is known by its domain, which is also the name of its machine: FOSSBilling keeps nothing else of an attempt
 * to create it that was not answered. Nothing is kept here. Every call may be repeated: an order has one idempotency key
 * for ever, and the controller takes what is so already for a success.
 */
require_once __DIR__ . '/Svc/Client.php';
require_once __DIR__ . '/Svc/Service.php';

use Svc\Client;
use Svc\Refusal;
use Svc\Service;

class Server_Manager_Svc extends Server_Manager
{
    private const PORT = 8443;

    public static function getForm(): array
    {
        return [
            'label' => 'svc machines',
            'form' => [
                'credentials' => [
                    'fields' => [
                        [
                            'name' => 'accesshash',
                            'type' => 'text',
                            'label' => 'API token',
                            'placeholder' => 'Made by: svc token create billing --scopes provision',
                            'required' => true,
                            'secret' => true,
                        ],
                    ],
                ],
            ],
        ];
    }

    public function init(): void
    {
        foreach (['host' => 'hostname', 'accesshash' => 'API token'] as $name => $called) {
            if (empty($this->_config[$name])) {
                throw new Server_Exception("The $called of the server svc is missing.");
            }
        }
    }

    /** The same for the same domain, also where an answer was lost. */
    public function generateUsername(string $domain): string
    {
        return substr(strtolower((string) preg_replace('/[^A-Za-z0-9]/', '', $domain)), 0, 16);
    }

    public function testConnection(): bool
    {
        return $this->told(function () {
            $ping = $this->client()->get('/ping');
            if (!$ping['ready']) {
                throw new Refusal('unavailable', implode(' ', $ping['problems']));
            }
        });
    }

    /** With an account a link that signs its customer in, once, within 90 seconds. */
    public function getLoginUrl(?Server_Account $account = null): string
    {
        if ($account !== null) {
            try {
                return $this->service($account)->ask('sso')['url'];
            } catch (Refusal $refusal) {
                $this->getLog()->error('No link to the machine: ' . $refusal->getMessage());
            }
        }

        return $this->base() . '/';
    }

    public function getResellerLoginUrl(?Server_Account $account = null): string
    {
        return $this->getLoginUrl($account);
    }

    public function createAccount(Server_Account $account): bool
    {
        return $this->told(function () use ($account) {
            $service = $this->service($account);
            if ($service->order($this->order($account)) === null) {
                $this->usePassword($service, $account->getPassword());
            }
        });
    }

    public function synchronizeAccount(Server_Account $account): Server_Account
    {
        $found = clone $account;
        $this->told(function () use ($account, $found) {
            $service = $this->service($account)->existing();
            $found->setSuspended($service['state'] === 'suspended');
            if (isset($service['machine']['primary_ip'])) {
                $found->setIp($service['machine']['primary_ip']);
            }
        });

        return $found;
    }

    public function suspendAccount(Server_Account $account): bool
    {
        return $this->told(function () use ($account) {
            $how = [
                'mode' => $account->getPackage()->getCustomValue('suspension'),
                'reason' => $account->getNote(),
            ];
            $this->service($account)->ask('suspend', array_filter($how));
        });
    }

    public function unsuspendAccount(Server_Account $account): bool
    {
        return $this->told(function () use ($account) {
            $this->service($account)->ask('unsuspend');
        });
    }

    public function cancelAccount(Server_Account $account): bool
    {
        return $this->told(function () use ($account) {
            $service = $this->service($account);
            if ($service->current()[1] !== null) {
                $destroyed = $account->getPackage()->getCustomValue('destroy_disks') === 'yes';
                $service->ask('terminate', ['confirm' => true, 'destroy_disks' => $destroyed]);
            }
        });
    }

    public function changeAccountPackage(Server_Account $account, Server_Package $package): bool
    {
        return $this->told(function () use ($account, $package) {
            $service = $this->service($account);
            if ($service->existing()['plan'] !== self::plan($package)) {
                $service->ask('change-plan', ['plan_slug' => self::plan($package), 'reboot' => true]);
            }
        });
    }

    public function changeAccountPassword(Server_Account $account, string $newPassword): bool
    {
        return $this->told(function () use ($account, $newPassword) {
            $this->service($account)->ask('reset-password', ['password' => $newPassword]);
        });
    }

    public function changeAccountUsername(Server_Account $account, string $newUsername): bool
    {
        throw new Server_Exception('The account of a machine has the name that its image gives it.');
    }

    public function changeAccountDomain(Server_Account $account, string $newDomain): bool
    {
        throw new Server_Exception('The domain is what the controller knows the machine by; it stays as it is.');
    }

    public function changeAccountIp(Server_Account $account, string $newIp): bool
    {
        throw new Server_Exception('The controller gives out addresses; change them there, then synchronize the service.');
    }

    /** The order of a machine, as the controller takes it. */
    private function order(Server_Account $account): array
    {
        $customer = $account->getClient();
        $package = $account->getPackage();
        $order = [
            'customer_email' => $customer->getEmail(),
            'customer_name' => trim((string) $customer->getFullName()),
            'customer_company' => (string) $customer->getCompany(),
            'name' => $account->getDomain(),
            'plan_slug' => self::plan($package),
            'image_slug' => $package->getCustomValue('image'),
            'access_mode' => $package->getCustomValue('access'),
            'set_password' => $account->getPassword(),
            'user_data' => str_replace("\r\n", "\n", (string) $package->getCustomValue('user_data')),
        ];

        return array_filter($order, fn ($value) => $value !== null && $value !== '');
    }

    /** An order that was not answered is repeated with a password that FOSSBilling has made anew: that is what counts. */
    private function usePassword(Service $service, ?string $password): void
    {
        try {
            $service->ask('reset-password', ['password' => (string) $password]);
        } catch (Refusal $refusal) {
            // The machine is there, and the customer can choose a password on the service's page.
            $this->getLog()->warning('The password of the machine is still the first one: ' . $refusal->getMessage());
        }
    }

    /** The custom value `plan` of a hosting plan, or else its name. */
    private static function plan(Server_Package $package): string
    {
        return (string) ($package->getCustomValue('plan') ?: $package->getName());
    }

    private function service(Server_Account $account): Service
    {
        return new Service($this->client(), 'fossbilling', (string) $account->getDomain());
    }

    private function client(): Client
    {
        return new Client($this->base(), trim((string) $this->_config['accesshash']));
    }

    private function base(): string
    {
        return 'https://' . $this->_config['host'] . ':' . ((int) $this->_config['port'] ?: self::PORT);
    }

    /** True, or FOSSBilling's exception with the controller's words. */
    private function told(callable $call): bool
    {
        try {
            $call();
        } catch (Refusal $refusal) {
            throw new Server_Exception($refusal->getMessage());
        }

        return true;
    }
}
